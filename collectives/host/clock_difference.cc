#include "host/clock_difference.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "host/wait_for.h"

namespace sirtaki {
namespace {

constexpr int kClockTag = 1;
constexpr int kRounds = 16;
using Numbers = std::array<std::int64_t, 2>;

std::string name_of_rank(int rank) { return "rank " + std::to_string(rank); }

void send(Transport& transport, int to, const Numbers& numbers) {
  wait_for(transport.send_data(to, kClockTag, std::as_bytes(std::span(numbers))), transport, name_of_rank(to));
}

Numbers receive_numbers(Transport& transport, int from) {
  Numbers numbers{};
  wait_for(transport.receive_data(from, kClockTag, std::as_writable_bytes(std::span(numbers))), transport,
           name_of_rank(from));
  return numbers;
}

std::int64_t now() { return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(); }

// Rank 0 reads its clock between this rank's two readings; the fastest round says most.
ClockDifference compare_with_rank_0(Transport& transport) {
  ClockDifference best{.offset = {}, .error = std::chrono::nanoseconds::max()};
  for (int round = 0; round < kRounds; ++round) {
    const std::int64_t before = now();
    send(transport, 0, {});
    const std::int64_t theirs = receive_numbers(transport, 0)[0];
    const std::int64_t half = (now() - before + 1) / 2;
    if (std::chrono::nanoseconds(half) >= best.error) continue;
    best = {std::chrono::nanoseconds(before + half - theirs), std::chrono::nanoseconds(half)};
  }
  return best;
}

// Answers the first rank of a host.
void serve(Transport& transport, int rank) {
  for (int round = 0; round < kRounds; ++round) {
    receive_numbers(transport, rank);
    send(transport, rank, {now(), 0});
  }
}

}  // namespace

ClockDifference compare_clocks(Transport& transport, const std::vector<int>& hosts) {
  const auto host_of = [&](int rank) { return hosts[static_cast<std::size_t>(rank)]; };
  const auto first_of = [&](int host) { return static_cast<int>(std::ranges::find(hosts, host) - hosts.begin()); };
  const int rank = transport.rank();
  if (rank == 0) {
    for (int other = 1; other < transport.size(); ++other) {
      if (host_of(other) != host_of(0) && first_of(host_of(other)) == other) serve(transport, other);
    }
  }
  if (host_of(rank) == host_of(0)) return {};
  const int first = first_of(host_of(rank));
  if (rank != first) {
    const Numbers numbers = receive_numbers(transport, first);
    return {std::chrono::nanoseconds(numbers[0]), std::chrono::nanoseconds(numbers[1])};
  }
  const ClockDifference difference = compare_with_rank_0(transport);
  for (int other = first + 1; other < transport.size(); ++other) {
    if (host_of(other) == host_of(rank)) {
      send(transport, other, {difference.offset.count(), difference.error.count()});
    }
  }
  return difference;
}

}  // namespace sirtaki
