#include "transport_suite.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "waiting.h"

namespace sirtaki::contract {
namespace {

// Around the sizes where implementations change their ways.
constexpr std::array<std::size_t, 12> kSizes = {0, 1, 100, 4079, 4080, 4087, 4088, 4089, 4096, 4097, 65537, 1 << 20};

Bytes pattern(int from, int to, std::size_t number, std::size_t size) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>(i * 7 + number * 31 + static_cast<std::size_t>(from * 5 + to));
  }
  return bytes;
}

Message next(Transport& transport) {
  Message message;
  wait_until([&] { return transport.receive(message); });
  return message;
}

void send_all(Transport& transport, int to) {
  for (std::size_t i = 0; i < kSizes.size(); ++i) {
    transport.send(to, pattern(transport.rank(), to, i, kSizes[i]));
  }
}

// Every size both ways between rank 0 and each other, all at once.
void check_messages(Transport& transport) {
  const int rank = transport.rank();
  const int first = rank == 0 ? 1 : 0;
  const int end = rank == 0 ? transport.size() : std::min(1, transport.size() - 1);
  for (int peer = first; peer < end; ++peer) send_all(transport, peer);
  std::vector<std::size_t> seen(static_cast<std::size_t>(transport.size()), 0);
  for (std::size_t left = static_cast<std::size_t>(end - first) * kSizes.size(); left > 0; --left) {
    const Message message = next(transport);
    const std::size_t number = seen[static_cast<std::size_t>(message.from)]++;
    CHECK_MESSAGE(message.bytes == pattern(message.from, rank, number, kSizes[number]), "message ", number,
                  " from rank ", message.from, " is wrong");
  }
  wait_until([&] { return transport.flushed(); });
}

void barrier(Transport& transport) {
  if (transport.rank() == 0) {
    for (int i = 1; i < transport.size(); ++i) CHECK_MESSAGE(next(transport).bytes.empty(), "not empty");
    for (int to = 1; to < transport.size(); ++to) transport.send(to, {});
  } else {
    transport.send(0, {});
    CHECK_MESSAGE(next(transport).bytes.empty(), "not empty");
  }
  wait_until([&] { return transport.flushed(); });
  Message message;
  CHECK_MESSAGE(!transport.receive(message), "a message too many");
}

// Each rank sends to each, with two tags that are received in the other order, and twice with the same tag.
void check_data(Transport& transport, std::size_t size) {
  constexpr std::array<int, 3> sent = {5, 32767, 5};
  constexpr std::array<int, 3> received = {32767, 5, 5};
  constexpr std::array<std::size_t, 3> numbers = {1, 0, 2};
  std::vector<Bytes> out, in;
  std::vector<PendingPtr> pending;
  for (int peer = 0; peer < transport.size(); ++peer) {
    if (peer == transport.rank()) continue;
    for (std::size_t i = 0; i < 3; ++i) {
      in.emplace_back(size);
      pending.push_back(transport.receive_data(peer, received[i], in.back()));
      out.push_back(pattern(transport.rank(), peer, i, size));
      pending.push_back(transport.send_data(peer, sent[i], out.back()));
    }
  }
  for (PendingPtr& each : pending) wait(std::move(each));
  std::size_t index = 0;
  for (int peer = 0; peer < transport.size(); ++peer) {
    if (peer == transport.rank()) continue;
    for (std::size_t i = 0; i < 3; ++i) {
      CHECK_MESSAGE(in[index++] == pattern(peer, transport.rank(), numbers[i], size), "data from rank ", peer);
    }
  }
}

void check_part(const std::unique_ptr<Transport>& part, int rank, const std::vector<int>& ranks) {
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  CHECK_MESSAGE((part != nullptr) == (found != ranks.end()), "wrong membership");
  if (part == nullptr) return;
  CHECK_MESSAGE(part->size() == static_cast<int>(ranks.size()), "wrong size");
  CHECK_MESSAGE(part->rank() == static_cast<int>(found - ranks.begin()), "wrong order");
  check_messages(*part);
  check_data(*part, 1000);
  barrier(*part);
}

void check_split(Transport& transport, const std::vector<int>& ranks) {
  check_part(transport.split(ranks), transport.rank(), ranks);
}

void check_splits(Transport& transport) {
  std::vector<int> backwards(static_cast<std::size_t>(transport.size()));
  std::iota(backwards.rbegin(), backwards.rend(), 0);
  check_split(transport, backwards);
  check_split(transport, {transport.size() - 1});
  std::vector<int> odd;
  for (int rank = 1; rank < transport.size(); rank += 2) odd.push_back(rank);
  if (!odd.empty()) check_split(transport, odd);
  std::vector<int> even;
  for (int rank = 0; rank < transport.size(); rank += 2) even.push_back(rank);
  check_split(transport, transport.rank() % 2 == 0 ? even : odd);  // both at once
  check_split(transport, transport.rank() % 2 == 0 ? std::vector<int>{} : odd);
}

// Each rank calls only for groups that hold it: its neighbours twice, both in the same order, then all.
void check_splits_by_members(Transport& transport) {
  std::vector<int> all(static_cast<std::size_t>(transport.size()));
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::vector<int>> groups;
  for (int rank = 0; rank + 1 < transport.size(); ++rank) groups.insert(groups.end(), 2, {rank + 1, rank});
  groups.push_back(all);
  for (const std::vector<int>& ranks : groups) {
    if (std::ranges::find(ranks, transport.rank()) == ranks.end()) continue;
    check_part(transport.split_members(ranks), transport.rank(), ranks);
  }
}

// A transport may go as soon as it is flushed; another one made later gets nothing meant for it.
void check_recreation(Transport& transport) {
  std::vector<int> all(static_cast<std::size_t>(transport.size()));
  std::iota(all.begin(), all.end(), 0);
  for (int i = 0; i < 50; ++i) {
    const std::unique_ptr<Transport> copy = transport.split(all);
    barrier(*copy);
  }
}

}  // namespace

void check_transport(Transport& transport) {
  check_messages(transport);
  const std::size_t large = transport.size() > 4 ? 70'000 : 5 << 20;  // each rank sends to each
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{4096}, large}) check_data(transport, size);
  barrier(transport);
  check_splits(transport);
  check_splits_by_members(transport);
  check_recreation(transport);
  barrier(transport);
}

}  // namespace sirtaki::contract
