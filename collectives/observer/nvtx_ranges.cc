#include "observer/nvtx_ranges.h"

#include <string>

namespace sirtaki {
namespace {

// Waits of this thread that have a range. Ranges of the program must not be ended in their place.
thread_local int pushed = 0;

std::string title_of(const BatchEvent& batch) {
  return std::string("sirtaki.") + std::string(name_of(batch.verb)) + ": " + std::to_string(batch.tensors) +
         " tensors, " + std::to_string(batch.bytes) + " bytes";
}

}  // namespace

void NvtxRanges::on_wait_begun() {
  if (!is_on()) return;
  calls_.push("sirtaki.wait");
  ++pushed;
}

void NvtxRanges::on_wait_ended() {
  if (pushed == 0) return;
  --pushed;
  calls_.pop();
}

void NvtxRanges::on_step_ended() {
  if (is_on()) calls_.mark("sirtaki.step");
}

void NvtxRanges::on_started(const BatchEvent& batch) {
  if (is_on()) running_[batch.group] = calls_.start(title_of(batch).c_str());
}

void NvtxRanges::on_finished(const BatchEvent& batch, BatchOutcome) {
  const auto range = running_.find(batch.group);
  if (range == running_.end()) return;
  calls_.end(range->second);
  running_.erase(range);
}

}  // namespace sirtaki
