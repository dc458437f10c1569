#include "sockets/mesh.h"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/time_limits.h"

namespace sirtaki {
namespace {

constexpr std::size_t kScratch = std::size_t{64} << 10;
constexpr int kEvents = 32;
// Connections whose other end has not proven anything, beside one for each rank.
constexpr std::ptrdiff_t kStrangers = 64;

void epoll_set(int epoll, int operation, int socket, std::uint32_t events, Connection* connection) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = connection;
  epoll_ctl(epoll, operation, socket, &event);
}

std::uint32_t events_of(const Connection& connection) {
  return connection.watches_output ? EPOLLIN | EPOLLOUT : EPOLLIN;
}

std::string rank_name(int rank) { return "rank " + std::to_string(rank); }

}  // namespace

Mesh::Mesh(MeshOptions options)
    : options_(std::move(options)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      scratch_(kScratch),
      peers_(options_.addresses.size()) {
  open_.add(options_.listener.get());
  if (options_.listener.get() >= 0) epoll_set(epoll_.get(), EPOLL_CTL_ADD, options_.listener.get(), EPOLLIN, nullptr);
}

Mesh::~Mesh() {
  watch_.reset();
  if (ended_.empty()) leave();
  if (!ended_.empty()) work_until([](const Connection& each) { return each.identified() && each.queue().empty(); });
}

void Mesh::progress() {
  std::array<epoll_event, kEvents> events{};
  const int count = epoll_wait(epoll_.get(), events.data(), kEvents, 0);
  for (int i = 0; i < count; ++i) {
    auto* const connection = static_cast<Connection*>(events[static_cast<std::size_t>(i)].data.ptr);
    if (connection == nullptr) {
      accept();
    } else if (!connection->closed()) {
      connection->on_event();
      watch_output(*connection);
    }
  }
  pass_on_abort();
  if (count > 0) std::erase_if(connections_, [](const auto& connection) { return connection->closed(); });
}

void Mesh::watch() {
  progress();
  check();
  if (watch_ != nullptr) watch_->arm();
}

void Mesh::check() {
  if (!ended_.empty()) throw Error(ErrorKind::kAborted, ended_);
  if (const std::optional<int> rank = std::exchange(news_of_, std::nullopt)) throw LostRank(*rank, peer(*rank).lost);
}

void Mesh::check(int rank) {
  check();
  const Peer& other = peer(rank);
  if (!other.lost.empty()) throw LostRank(rank, other.lost);
  if (other.left) throw LostRank(rank, rank_name(this->rank()) + " waits for it, but it has left the job");
}

// ---- sending ----

void Mesh::send(int to, SocketFrameHead head, Bytes own, std::span<const std::byte> borrowed, bool* done) {
  Connection* const connection = connection_to(to);
  if (connection == nullptr) return;
  head.generation = options_.generation;
  head.length = own.empty() ? borrowed.size() : own.size();
  const bool idle = connection->queue().empty();
  connection->queue().add(head, std::move(own), borrowed, done);
  if (!idle) return;
  connection->flush();
  watch_output(*connection);
}

bool Mesh::flushed() const {
  return std::ranges::all_of(connections_, [](const auto& each) { return each->closed() || each->queue().empty(); });
}

void Mesh::copy_body(int to, const bool* done) {
  if (peer(to).out != nullptr) peer(to).out->queue().copy_body(done);
}

void Mesh::copy_all_bodies() {
  for (const auto& connection : connections_) connection->queue().copy_all_bodies();
}

// ---- connections ----

// Null if that rank is lost or has left.
Connection* Mesh::connection_to(int rank) {
  Peer& other = peer(rank);
  if (other.out != nullptr || !other.lost.empty() || other.left) return other.out;
  const auto found =
      std::ranges::find_if(connections_, [&](const auto& each) { return each->identified() && each->peer() == rank; });
  if (found != connections_.end()) return other.out = found->get();
  try {
    Descriptor socket = begin_connect(options_.addresses[static_cast<std::size_t>(rank)], options_.silence);
    add(std::make_unique<Connection>(static_cast<ConnectionOwner&>(*this), std::move(socket), rank));
    other.out = connections_.back().get();
  } catch (const Error& error) {
    lose(rank, error.what());
  }
  return other.out;
}

void Mesh::add(std::unique_ptr<Connection> connection) {
  connection->watches_output = connection->blocked();
  epoll_set(epoll_.get(), EPOLL_CTL_ADD, connection->socket(), events_of(*connection), connection.get());
  open_.add(connection->socket());
  connections_.push_back(std::move(connection));
}

void Mesh::accept() {
  const auto next = [&] { return accept_next(options_.listener, options_.silence); };
  for (Descriptor socket = next(); socket.get() >= 0; socket = next()) {
    add(std::make_unique<Connection>(static_cast<ConnectionOwner&>(*this), std::move(socket)));
    drop_oldest_stranger();
  }
}

// A stranger that connects and sends nothing must not use up this process's descriptors.
void Mesh::drop_oldest_stranger() {
  const auto is_stranger = [](const auto& each) { return each->peer() < 0 && !each->closed(); };
  if (std::ranges::count_if(connections_, is_stranger) <= size() + kStrangers) return;
  (*std::ranges::find_if(connections_, is_stranger))->close("");
}

// Room for more bytes is an event only while something waits for it.
void Mesh::watch_output(Connection& connection) {
  if (connection.closed() || connection.blocked() == connection.watches_output) return;
  connection.watches_output = connection.blocked();
  epoll_set(epoll_.get(), EPOLL_CTL_MOD, connection.socket(), events_of(connection), &connection);
}

void Mesh::on_identified(Connection& connection) {
  Peer& other = peer(connection.peer());
  if (other.out == nullptr && other.lost.empty()) other.out = &connection;
  if (!ended_.empty() && !passes_on_abort_ && connection.queue().empty()) connection.queue().add(abort_, {});
}

void Mesh::on_closed(Connection& connection, const std::string& why) {
  open_.remove(connection.socket());
  if (connection.peer() < 0) return;
  Peer& other = peer(connection.peer());
  if (other.out == &connection) other.out = nullptr;
  if (connection.leaving()) {
    other.left = true;
  } else if (!leaving_) {
    lose(connection.peer(), why);
  }
}

void Mesh::lose(int rank, const std::string& why) {
  Peer& other = peer(rank);
  if (!other.lost.empty() || other.left) return;
  other.lost = "the connection between it and " + rank_name(this->rank()) + " has ended: " + why;
  if (!std::exchange(failed_, true)) news_of_ = rank;
}

// ---- what arrives ----

void Mesh::on_message(int from, std::uint64_t group, Bytes bytes) {
  if (!ended_groups_.contains(group)) inboxes_[group].add({from, std::move(bytes)});
}

FrameTarget* Mesh::on_frame(int from, const SocketFrameHead& head) {
  if (head.kind == SocketFrameKind::kAbort) end_job(static_cast<int>(head.group), head.tag);
  const bool dropped = head.kind != SocketFrameKind::kData || ended_groups_.contains(head.group);
  return dropped ? nullptr : inboxes_[head.group].begin(from, head.tag, head.length);
}

std::uint64_t Mesh::new_group() { return static_cast<std::uint64_t>(rank()) << 32 | ++groups_made_; }

Inbox& Mesh::inbox(std::uint64_t group) { return inboxes_[group]; }

void Mesh::end_group(std::uint64_t group) {
  inboxes_[group].withdraw_all();
  inboxes_.erase(group);
  ended_groups_.insert(group);
}

// ---- the end ----

void Mesh::abort_job(int exit_code) {
  end_job(rank(), exit_code);
  pass_on_abort();
  work_until([](const Connection& each) { return each.identified() && each.queue().empty(); });
}

void Mesh::end_job(int rank, int exit_code) {
  if (!ended_.empty()) return;
  ended_ = rank_name(rank) + " ended the job with exit code " + std::to_string(exit_code);
  failed_ = true;
  abort_ = {.generation = options_.generation,
            .kind = SocketFrameKind::kAbort,
            .group = static_cast<std::uint64_t>(rank),
            .tag = exit_code};
  passes_on_abort_ = true;
}

// A rank that waits has a connection to the rank for which it waits. So an abort that every rank passes on once reaches
// all that wait, directly or through others.
void Mesh::pass_on_abort() {
  if (std::exchange(passes_on_abort_, false)) send_to_all(abort_);
}

// On a connection that is not identified yet, the frame waits until it is. A rank that connects later gets an abort by
// on_identified().
void Mesh::send_to_all(const SocketFrameHead& head) {
  for (const auto& connection : connections_) {
    if (connection->closed() || connection->peer() < 0) continue;
    connection->queue().add(head, {});
    connection->flush();
    watch_output(*connection);
  }
}

// Announces the end on every connection, so that it is no failure on the other ranks. Then waits until they have left
// as well: a connection that is closed before its other end has sent everything loses bytes.
void Mesh::leave() {
  leaving_ = true;
  if (failed_) return;
  send_to_all({.generation = options_.generation, .kind = SocketFrameKind::kLeave});
  work_until([this](const Connection& each) {
    return failed_ || !each.identified() || (each.leaving() && each.queue().empty());
  });
}

// For a limited time, until this is true for all connections.
void Mesh::work_until(const std::function<bool(const Connection&)>& done) {
  const auto limit = Clock::now() + kLeaveTogether;
  const auto waits = [&](const auto& each) { return !each->closed() && !done(*each); };
  while (std::ranges::any_of(connections_, waits) && Clock::now() < limit) {
    pollfd ready{epoll_.get(), POLLIN, 0};
    poll(&ready, 1, 10);
    progress();
  }
}

}  // namespace sirtaki
