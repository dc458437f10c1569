#include "host/setup_exchange.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "host/wait_for.h"

namespace sirtaki {
namespace {

constexpr int kTag = 0;
constexpr std::size_t kTextSize = 512;
using Text = std::array<char, kTextSize>;

std::string rank_name(int rank) { return "rank " + std::to_string(rank); }

void send(Transport& transport, int to, const std::string& value) {
  Text text{};
  std::memcpy(text.data(), value.data(), std::min(value.size(), kTextSize - 1));
  wait_for(transport.send_data(to, kTag, std::as_bytes(std::span(text))), transport, rank_name(to));
}

void send(Transport& transport, int to, const std::size_t& value) {
  wait_for(transport.send_data(to, kTag, std::as_bytes(std::span(&value, 1))), transport, rank_name(to));
}

std::size_t receive(Transport& transport, int from) {
  std::size_t value = 0;
  wait_for(transport.receive_data(from, kTag, std::as_writable_bytes(std::span(&value, 1))), transport,
           rank_name(from));
  return value;
}

}  // namespace

void send_text_to_all(Transport& transport, const std::string& text) {
  for (int rank = 1; rank < transport.size(); ++rank) send(transport, rank, text);
}

std::string receive_text(Transport& transport, int rank) {
  Text text{};
  wait_for(transport.receive_data(rank, kTag, std::as_writable_bytes(std::span(text))), transport, rank_name(rank));
  text.back() = '\0';
  return text.data();
}

std::string first_failure(Transport& transport, const std::string& own) {
  if (transport.rank() != 0) {
    send(transport, 0, own);
    return receive_text(transport, 0);
  }
  std::string first;
  for (int rank = 0; rank < transport.size(); ++rank) {
    const std::string theirs = rank == 0 ? own : receive_text(transport, rank);
    if (first.empty() && !theirs.empty()) first = "rank " + std::to_string(rank) + ": " + theirs;
  }
  send_text_to_all(transport, first);
  return first;
}

std::size_t least_of_all(Transport& transport, std::size_t own) {
  if (transport.rank() != 0) {
    send(transport, 0, own);
    return receive(transport, 0);
  }
  for (int rank = 1; rank < transport.size(); ++rank) own = std::min(own, receive(transport, rank));
  for (int rank = 1; rank < transport.size(); ++rank) send(transport, rank, own);
  return own;
}

}  // namespace sirtaki
