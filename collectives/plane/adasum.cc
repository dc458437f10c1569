#include "plane/adasum.h"

#include <algorithm>
#include <vector>

#include "math/kernels.h"

namespace sirtaki {
namespace {

// Elements [begin, end) of the whole buffer.
struct Range {
  std::int64_t begin;
  std::int64_t end;
  std::int64_t size() const { return end - begin; }
};

std::span<std::byte> bytes_of(std::span<std::byte> buffer, DType dtype, Range range) {
  const std::size_t size = size_of(dtype);
  return buffer.subspan(static_cast<std::size_t>(range.begin) * size, static_cast<std::size_t>(range.size()) * size);
}

template <class Visit>
void for_each_segment(std::span<const std::int64_t> ends, Range range, Visit visit) {
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < ends.size(); begin = ends[i++]) {
    const Range part{std::max(begin, range.begin), std::min(ends[i], range.end)};
    if (part.size() > 0) visit(i, part);
  }
}

// Sums the dot products over the ranks of the aligned block of 2 * distance ranks, which hold parts of the same
// vectors.
Task sum_in_block(Transport& transport, int tag, int distance, std::vector<Dots>& sums) {
  std::vector<Dots> theirs(sums.size());
  for (int d = 1; d <= distance; d *= 2) {
    const int partner = transport.rank() ^ d;
    PendingPtr sent = transport.send_data(partner, tag, std::as_bytes(std::span(sums)));
    co_await transport.receive_data(partner, tag, std::as_writable_bytes(std::span(theirs)));
    co_await std::move(sent);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i].aa += theirs[i].aa;
      sums[i].ab += theirs[i].ab;
      sums[i].bb += theirs[i].bb;
    }
  }
}

double weight(double ab, double norm) { return norm > 0 ? 1 - ab / (2 * norm) : 1; }

}  // namespace

Task adasum(Transport& transport, int tag, DType dtype, std::span<std::byte> buffer,
            std::span<const std::int64_t> ends) {
  Range mine{0, ends.empty() ? 0 : ends.back()};
  std::vector<std::byte> received(static_cast<std::size_t>((mine.size() + 1) / 2) * size_of(dtype));
  std::vector<Range> whole;  // the range that was split at each distance
  for (int distance = 1; distance < transport.size(); distance *= 2) {
    const bool lower = (transport.rank() & distance) == 0;
    const std::int64_t middle = mine.begin + mine.size() / 2;
    const Range left{mine.begin, middle};
    const Range right{middle, mine.end};
    whole.push_back(mine);
    mine = lower ? left : right;
    const int partner = transport.rank() ^ distance;
    ++tag;
    PendingPtr sent = transport.send_data(partner, tag, bytes_of(buffer, dtype, lower ? right : left));
    const auto theirs = std::span(received).first(bytes_of(buffer, dtype, mine).size());
    co_await transport.receive_data(partner, tag, theirs);
    co_await std::move(sent);

    const auto at = [&](std::int64_t element) {
      return received.data() + static_cast<std::size_t>(element - mine.begin) * size_of(dtype);
    };
    std::vector<Dots> sums(ends.size());
    for_each_segment(ends, mine, [&](std::size_t i, Range part) {
      void* own = bytes_of(buffer, dtype, part).data();
      sums[i] = lower ? dots(dtype, own, at(part.begin), part.size()) : dots(dtype, at(part.begin), own, part.size());
    });
    co_await sum_in_block(transport, ++tag, distance, sums);
    for_each_segment(ends, mine, [&](std::size_t i, Range part) {
      const double a = weight(sums[i].ab, sums[i].aa);
      const double b = weight(sums[i].ab, sums[i].bb);
      combine(dtype, bytes_of(buffer, dtype, part).data(), lower ? a : b, at(part.begin), lower ? b : a, part.size());
    });
  }
  for (int distance = transport.size() / 2; distance >= 1; distance /= 2) {
    const Range all = whole.back();
    whole.pop_back();
    const Range other = mine.begin == all.begin ? Range{mine.end, all.end} : Range{all.begin, mine.begin};
    const int partner = transport.rank() ^ distance;
    ++tag;
    PendingPtr sent = transport.send_data(partner, tag, bytes_of(buffer, dtype, mine));
    co_await transport.receive_data(partner, tag, bytes_of(buffer, dtype, other));
    co_await std::move(sent);
    mine = all;
  }
}

}  // namespace sirtaki
