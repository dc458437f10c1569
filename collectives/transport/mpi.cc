#include "transport/mpi.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace sirtaki {
namespace {

constexpr int kEagerTag = 0;
constexpr int kRestTag = 1;
constexpr std::size_t kEager = 4096;
constexpr std::size_t kHeader = sizeof(std::uint64_t);  // the message's length
constexpr std::size_t kEagerBytes = kEager - kHeader;
constexpr std::size_t kLargest = std::size_t{1} << 30;  // MPI counts in int
constexpr int kPatience = 1000;                         // number of MPI_Test calls for a request whose peer may be dead

template <typename Byte>
std::span<Byte> piece_at(std::span<Byte> bytes, std::size_t offset) {
  return bytes.subspan(offset, std::min(kLargest, bytes.size() - offset));
}

// Cancels a receive, without waiting for the peer. False if the receive is still active afterwards.
bool cancel_receive(const MpiLibrary& mpi, MpiRequest request) {
  mpi.cancel(request);
  for (int i = 0; i < kPatience; ++i) {
    if (mpi.test(request)) return true;
  }
  mpi.free(request);
  return false;
}

// Leaks a buffer on purpose, since MPI may still write to it.
template <typename Buffer>
void leak(Buffer buffer) {
  static_cast<void>(new Buffer(std::move(buffer)));
}

// A transfer of data in pieces. All are posted at once, so that transfers with one tag keep their order.
class Transfer final : public Pending {
 public:
  enum class Way { kSend, kReceive };

  Transfer(const MpiLibrary& mpi, Way way, std::vector<MpiRequest> requests)
      : mpi_(mpi), way_(way), requests_(std::move(requests)) {}
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  // Destroyed after a failure, before completion: the receive must not write to memory that will be freed.
  ~Transfer() override {
    try {
      if (done_ == requests_.size() || mpi_.is_finalized()) return;
      for (; done_ < requests_.size(); ++done_) give_up(requests_[done_]);
    } catch (const Error&) {
      // The failure that caused this is recorded already.
    }
  }

  bool ready() override {
    while (done_ < requests_.size() && mpi_.test(requests_[done_])) ++done_;
    return done_ == requests_.size();
  }

 private:
  void give_up(MpiRequest request) {
    if (way_ == Way::kReceive) {
      cancel_receive(mpi_, request);
    } else {
      mpi_.free(request);
    }
  }

  const MpiLibrary& mpi_;
  Way way_;
  std::vector<MpiRequest> requests_;
  std::size_t done_ = 0;
};

}  // namespace

MpiTransport::MpiTransport(MpiCommunicator base)
    : control_(std::move(base)),
      data_(control_.duplicate()),
      mpi_(control_.mpi()),
      rank_(control_.rank()),
      size_(control_.size()) {
  const int first = rank_ == 0 ? 1 : 0;
  const int last = rank_ == 0 ? size_ - 1 : 0;
  for (int peer = first; peer <= last; ++peer) {
    inboxes_.push_back({.from = peer, .eager = Bytes(kEager), .message = {}});
  }
  receives_.resize(inboxes_.size());
  for (std::size_t i = 0; i < inboxes_.size(); ++i) post(i);
}

MpiTransport::~MpiTransport() {
  try {
    if (mpi_.is_finalized()) return;
    end_receives();
    end_sends();
  } catch (const Error&) {
    // The job has failed already, and its cause is recorded.
  }
}

void MpiTransport::end_receives() {
  for (std::size_t i = 0; i < inboxes_.size(); ++i) {
    if (!cancel_receive(mpi_, receives_[i])) leak(std::move(inboxes_[i]));
  }
}

void MpiTransport::end_sends() {
  for (int i = 0; i < kPatience && !flushed(); ++i) {
  }
  for (Outgoing& each : outgoing_) {
    mpi_.free(each.request);
    leak(std::move(each.bytes));
  }
}

void MpiTransport::send(int to, Bytes bytes) {
  if (to == rank_ || (rank_ != 0 && to != 0)) {
    throw Error(ErrorKind::kPrecondition, "control messages go between rank 0 and another, not from rank " +
                                              std::to_string(rank_) + " to " + std::to_string(to));
  }
  flushed();
  const std::uint64_t length = bytes.size();
  const std::size_t first = std::min(bytes.size(), kEagerBytes);
  Bytes eager(kHeader + first);
  std::memcpy(eager.data(), &length, kHeader);
  std::copy_n(bytes.begin(), first, eager.begin() + kHeader);
  const MpiRequest request = mpi_.isend(eager, to, kEagerTag, control_.comm());
  outgoing_.push_back({request, std::move(eager)});

  const std::span<const std::byte> all(bytes);
  for (std::size_t offset = first; offset < all.size(); offset += kLargest) {
    outgoing_.push_back({mpi_.isend(piece_at(all, offset), to, kRestTag, control_.comm()), {}});
  }
  if (first < bytes.size()) outgoing_.back().bytes = std::move(bytes);
}

bool MpiTransport::flushed() {
  while (!outgoing_.empty() && mpi_.test(outgoing_.front().request)) outgoing_.pop_front();
  return outgoing_.empty();
}

bool MpiTransport::receive(Message& message) {
  flushed();
  for (;;) {
    const int found = mpi_.test_any(receives_);
    if (found < 0) return false;
    const auto index = static_cast<std::size_t>(found);
    const bool complete = arrived(inboxes_[index], message);
    post(index);
    if (complete) return true;
  }
}

// Takes in what has arrived. True once the message is complete.
bool MpiTransport::arrived(Inbox& inbox, Message& message) {
  if (inbox.expected == 0) {
    std::uint64_t length = 0;
    std::memcpy(&length, inbox.eager.data(), kHeader);
    if (length > kLongestMessage) {
      throw Error(ErrorKind::kAborted, "a message of " + std::to_string(length) + " bytes from rank " +
                                           std::to_string(inbox.from) + ": it was damaged on the way");
    }
    inbox.message.resize(length);
    inbox.received = std::min<std::size_t>(length, kEagerBytes);
    std::copy_n(inbox.eager.begin() + kHeader, inbox.received, inbox.message.begin());
  } else {
    inbox.received += std::exchange(inbox.expected, 0);
  }
  if (inbox.received < inbox.message.size()) return false;
  message.from = inbox.from;
  message.bytes = std::exchange(inbox.message, {});
  inbox.received = 0;
  return true;
}

// Posts the next receive from this peer.
void MpiTransport::post(std::size_t index) {
  Inbox& inbox = inboxes_[index];
  const bool rest = inbox.received < inbox.message.size();
  std::span<std::byte> into = rest ? piece_at(std::span(inbox.message), inbox.received) : std::span(inbox.eager);
  if (rest) inbox.expected = into.size();
  receives_[index] = mpi_.irecv(into, inbox.from, rest ? kRestTag : kEagerTag, control_.comm());
}

PendingPtr MpiTransport::send_data(int to, int tag, std::span<const std::byte> bytes) {
  std::vector<MpiRequest> requests;
  for (std::size_t offset = 0; offset < bytes.size(); offset += kLargest) {
    requests.push_back(mpi_.isend(piece_at(bytes, offset), to, tag, data_.comm()));
  }
  return bytes.empty() ? nullptr : std::make_unique<Transfer>(mpi_, Transfer::Way::kSend, std::move(requests));
}

PendingPtr MpiTransport::receive_data(int from, int tag, std::span<std::byte> bytes) {
  std::vector<MpiRequest> requests;
  for (std::size_t offset = 0; offset < bytes.size(); offset += kLargest) {
    requests.push_back(mpi_.irecv(piece_at(bytes, offset), from, tag, data_.comm()));
  }
  return bytes.empty() ? nullptr : std::make_unique<Transfer>(mpi_, Transfer::Way::kReceive, std::move(requests));
}

std::unique_ptr<MpiTransport> MpiTransport::split_mpi(const std::vector<int>& ranks) {
  const auto found = std::find(ranks.begin(), ranks.end(), rank_);
  const bool inside = found != ranks.end();
  const int color = inside ? *std::ranges::min_element(ranks) : -1;
  const int key = static_cast<int>(found - ranks.begin());
  MpiCommunicator part(control_.library(), mpi_.split(control_.comm(), color, key));
  if (!inside) return nullptr;
  auto transport = std::make_unique<MpiTransport>(std::move(part));
  transport->set_patience(patience());
  return transport;
}

std::unique_ptr<MpiTransport> MpiTransport::split_members_mpi(const std::vector<int>& ranks) {
  constexpr int kTag = 0;  // calls with common ranks are never under way at the same time
  auto transport = std::make_unique<MpiTransport>(
      MpiCommunicator(control_.library(), mpi_.create_group(control_.comm(), ranks, kTag)));
  transport->set_patience(patience());
  return transport;
}

void MpiTransport::abort_job(int exit_code) { mpi_.abort(exit_code); }

}  // namespace sirtaki
