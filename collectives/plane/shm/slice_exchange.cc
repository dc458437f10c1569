#include "plane/shm/slice_exchange.h"

#include <utility>

namespace sirtaki {

class SliceExchange::Wait final : public Pending {
 public:
  Wait(SliceExchange& rails, const RailState* rail, PendingPtr other)
      : rails_(rails), rail_(rail), other_(std::move(other)) {}

  bool ready() override {
    if (rails_.advance()) note_progress();
    return (rail_ == nullptr || !rail_->running) && (other_ == nullptr || other_->ready());
  }

 private:
  SliceExchange& rails_;
  const RailState* rail_;
  PendingPtr other_;
};

SliceExchange::SliceExchange(std::vector<Rail> rails, std::size_t slice_bytes) {
  for (Rail& rail : rails) {
    rails_.push_back(
        std::make_unique<RailState>(RailState{.rail = std::move(rail), .memory = HostBuffer(slice_bytes)}));
  }
}

SliceExchange::~SliceExchange() {
  for (auto& rail : rails_) {
    if (rail->running) static_cast<void>(rail.release());  // never freed: the rail's plane may still use its memory
  }
}

void SliceExchange::start(std::size_t piece, DType dtype, ReduceOp op, std::int64_t count) {
  if (count == 0) return;
  RailState& rail = *rails_[piece % kCount];
  rail.segment = {rail.memory.data(), rail.memory.data(), count};
  rail.task = rail.rail.plane->allreduce({.dtype = dtype, .op = op}, {&rail.segment, 1});
  rail.running = true;
  advance();
}

PendingPtr SliceExchange::arrival(std::size_t piece) {
  if (rails_.empty()) return nullptr;
  return std::make_unique<Wait>(*this, rails_[piece % kCount].get(), nullptr);
}

PendingPtr SliceExchange::alongside(PendingPtr other) {
  if (other == nullptr) {
    advance();
    return nullptr;
  }
  return std::make_unique<Wait>(*this, nullptr, std::move(other));
}

// True if any rail has moved.
bool SliceExchange::advance() {
  bool moved = false;
  for (auto& rail : rails_) {
    if (!rail->running) continue;
    rail->running = !rail->task.advance();
    moved |= !rail->running || rail->task.took_progress();
  }
  return moved;
}

}  // namespace sirtaki
