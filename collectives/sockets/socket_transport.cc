#include "sockets/socket_transport.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "host/wait_for.h"

namespace sirtaki {
namespace {

constexpr std::uint64_t kAllRanks = 0;
// Tags that no caller of a transport uses.
constexpr int kBarrierTag = 32768;
constexpr int kGroupTag = 32769;

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

class Sending final : public Pending {
 public:
  Sending(Mesh& mesh, int to) : mesh_(mesh), to_(to) {}
  Sending(const Sending&) = delete;
  Sending& operator=(const Sending&) = delete;
  // After a failure the caller may free the memory before it is sent.
  ~Sending() override {
    if (!done_) mesh_.copy_body(to_, &done_);
  }

  bool* done() { return &done_; }
  bool ready() override {
    if (done_) return true;
    mesh_.progress();
    if (!done_) mesh_.check(to_);
    return done_;
  }

 private:
  Mesh& mesh_;
  int to_;
  bool done_ = false;
};

class Receiving final : public Pending {
 public:
  Receiving(Mesh& mesh, Inbox& inbox, int from, int tag, std::span<std::byte> bytes)
      : mesh_(mesh), inbox_(inbox), receive_(from, tag, bytes) {
    mesh_.expect(from);
    inbox_.post(receive_);
  }
  Receiving(const Receiving&) = delete;
  Receiving& operator=(const Receiving&) = delete;
  ~Receiving() override { inbox_.withdraw(receive_); }

  bool complete() const { return receive_.complete(); }
  bool ready() override {
    if (complete()) return true;
    const std::size_t before = receive_.received;
    mesh_.progress();
    if (complete()) return true;
    if (receive_.wrong_length > 0) refuse_length();
    mesh_.check(receive_.from);
    if (receive_.received > before) note_progress();
    return false;
  }

 private:
  [[noreturn]] void refuse_length() const {
    throw Error(ErrorKind::kAborted, "data from rank " + std::to_string(receive_.from) + " to rank " +
                                         std::to_string(mesh_.rank()) +
                                         " came cut off: " + std::to_string(receive_.wrong_length) + " bytes where " +
                                         std::to_string(receive_.memory.size()) + " were due");
  }

  Mesh& mesh_;
  Inbox& inbox_;
  Receive receive_;
};

}  // namespace

SocketTransport::SocketTransport(std::shared_ptr<Mesh> mesh)
    : SocketTransport(mesh, kAllRanks, all_ranks(mesh->size())) {}

SocketTransport::SocketTransport(std::shared_ptr<Mesh> mesh, std::uint64_t group, std::vector<int> ranks)
    : mesh_(std::move(mesh)),
      group_(group),
      inbox_(mesh_->inbox(group)),
      ranks_(std::move(ranks)),
      members_(static_cast<std::size_t>(mesh_->size()), -1) {
  for (int member = 0; member < size(); ++member) members_[static_cast<std::size_t>(job_rank(member))] = member;
  rank_ = members_[static_cast<std::size_t>(mesh_->rank())];
}

SocketTransport::~SocketTransport() { mesh_->end_group(group_); }

void SocketTransport::send(int to, Bytes bytes) {
  if (to == rank_ || (rank_ != 0 && to != 0)) {
    throw Error(ErrorKind::kPrecondition, "control messages go between rank 0 and another, not from rank " +
                                              std::to_string(rank_) + " to " + std::to_string(to));
  }
  mesh_->send(job_rank(to), {.kind = SocketFrameKind::kMessage, .group = group_}, std::move(bytes));
}

bool SocketTransport::receive(Message& message) {
  if (!inbox_.take(message)) {
    mesh_->progress();
    if (!inbox_.take(message)) {
      mesh_->check();
      return false;
    }
  }
  message.from = members_[static_cast<std::size_t>(message.from)];
  return true;
}

bool SocketTransport::flushed() {
  if (mesh_->flushed()) return true;
  mesh_->progress();
  return mesh_->flushed();
}

PendingPtr SocketTransport::send_data(int to, int tag, std::span<const std::byte> bytes) {
  if (bytes.empty()) return nullptr;
  auto sending = std::make_unique<Sending>(*mesh_, job_rank(to));
  mesh_->send(job_rank(to), {.kind = SocketFrameKind::kData, .group = group_, .tag = tag}, {}, bytes, sending->done());
  return *sending->done() ? nullptr : PendingPtr(std::move(sending));
}

PendingPtr SocketTransport::receive_data(int from, int tag, std::span<std::byte> bytes) {
  if (bytes.empty()) return nullptr;
  auto receiving = std::make_unique<Receiving>(*mesh_, inbox_, job_rank(from), tag, bytes);
  return receiving->complete() ? nullptr : PendingPtr(std::move(receiving));
}

void SocketTransport::stop_data() {
  inbox_.withdraw_all();
  mesh_->copy_all_bodies();
}

std::unique_ptr<Transport> SocketTransport::split(const std::vector<int>& ranks) {
  wait_for_all();
  return std::ranges::find(ranks, rank_) == ranks.end() ? nullptr : split_members(ranks);
}

// Every rank reports to rank 0, which then releases all.
void SocketTransport::wait_for_all() {
  std::byte token{};
  const auto receive = [&](int from) {
    sirtaki::wait_for(receive_data(from, kBarrierTag, {&token, 1}), *this, "rank " + std::to_string(from));
  };
  const auto send = [&](int to) {
    sirtaki::wait_for(send_data(to, kBarrierTag, {&token, 1}), *this, "rank " + std::to_string(to));
  };
  for (int member = 1; rank_ == 0 && member < size(); ++member) receive(member);
  for (int member = 1; rank_ == 0 && member < size(); ++member) send(member);
  if (rank_ == 0) return;
  send(0);
  receive(0);
}

// The first member numbers the new group, once all others have asked it for the number.
std::unique_ptr<Transport> SocketTransport::split_members(const std::vector<int>& ranks) {
  std::uint64_t group = 0;
  const auto receive = [&](int from) {
    sirtaki::wait_for(receive_data(from, kGroupTag, std::as_writable_bytes(std::span(&group, 1))), *this,
                      "rank " + std::to_string(from));
  };
  const auto send = [&](int to) {
    sirtaki::wait_for(send_data(to, kGroupTag, std::as_bytes(std::span(&group, 1))), *this,
                      "rank " + std::to_string(to));
  };
  if (rank_ == ranks.front()) {
    for (const int member : ranks) {
      if (member != rank_) receive(member);
    }
    group = mesh_->new_group();
    for (const int member : ranks) {
      if (member != rank_) send(member);
    }
  } else {
    send(ranks.front());
    receive(ranks.front());
  }
  std::vector<int> job_ranks;
  for (const int member : ranks) job_ranks.push_back(job_rank(member));
  std::unique_ptr<SocketTransport> part(new SocketTransport(mesh_, group, std::move(job_ranks)));
  part->set_patience(patience());
  return part;
}

}  // namespace sirtaki
