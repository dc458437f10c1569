#include "fusion/fusion.h"

#include <algorithm>

namespace sirtaki {
namespace {

struct OpenBatch {
  const Request* first;
  std::int64_t bytes;
  std::vector<std::size_t> members;
};

bool uniform(const Request& request) {
  const auto& tensors = request.tensors;
  return !tensors.empty() && std::all_of(tensors.begin(), tensors.end(), [&](const TensorSpec& t) {
    return t.dtype == tensors[0].dtype && t.device == tensors[0].device;
  });
}

// The other verbs' tensors are moved one by one. So only small ones gain by a common batch: they share its agreement.
// The result of a large one would wait for the others.
bool is_small_move(const Request& request) {
  constexpr std::int64_t kSmall = 64 << 10;
  return changes_shape(request.verb) && request.tensors[0].device == kHostDevice && bytes_of(request) <= kSmall;
}

bool fuses(const Request& a, const Request& b) {
  if (a.verb != b.verb) return false;
  if (changes_shape(a.verb) && !(is_small_move(a) && is_small_move(b))) return false;
  if (!moves_data(a.verb)) return false;
  if (!uniform(a) || !uniform(b) || a.tensors[0].device != b.tensors[0].device) return false;
  return a.tensors[0].dtype == b.tensors[0].dtype && a.op == b.op && a.prescale == b.prescale &&
         a.postscale == b.postscale && a.root == b.root;
}

}  // namespace

std::int64_t bytes_of(const Request& request) {
  std::int64_t bytes = 0;
  for (const TensorSpec& tensor : request.tensors) {
    bytes += element_count(tensor.shape) * static_cast<std::int64_t>(size_of(tensor.dtype));
  }
  return bytes;
}

std::vector<std::vector<std::size_t>> plan(std::span<const Request* const> ready, std::int64_t threshold) {
  std::vector<OpenBatch> batches;
  // The batches that still accept requests: one of each kind, so they are few and the search is short.
  std::vector<std::size_t> open;
  for (std::size_t i = 0; i < ready.size(); ++i) {
    const std::int64_t bytes = bytes_of(*ready[i]);
    const auto kind = std::find_if(open.begin(), open.end(),
                                   [&](std::size_t batch) { return fuses(*batches[batch].first, *ready[i]); });
    if (kind != open.end() && batches[*kind].bytes + bytes <= threshold) {
      batches[*kind].bytes += bytes;
      batches[*kind].members.push_back(i);
      continue;
    }
    if (kind != open.end()) open.erase(kind);
    if (fuses(*ready[i], *ready[i])) open.push_back(batches.size());
    batches.push_back({ready[i], bytes, {i}});
  }
  std::vector<std::vector<std::size_t>> result;
  result.reserve(batches.size());
  for (OpenBatch& batch : batches) result.push_back(std::move(batch.members));
  return result;
}

}  // namespace sirtaki
