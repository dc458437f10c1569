// Sends and receives of this rank. Matches them by process set, source, destination and tag, in the order in which each
// rank has submitted them. docs/point_to_point.md is the protocol. Engine's thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "agreement/messages.h"
#include "agreement/rank_status.h"
#include "execution/executor.h"
#include "queue/submission.h"
#include "send_receive/wire.h"

namespace sirtaki {

class Mailbox final : private FrameOwner {
 public:
  // A tensor of at most so many bytes travels with its description.
  static constexpr std::size_t kEagerBytes = std::size_t{16} << 10;

  Mailbox(int rank, int size, std::unique_ptr<Wire> wire, SubmissionOwner& owner);

  // A send or a receive; its root is a rank of the job.
  void submit(int process_set, Submission submission);
  // True if anything moved.
  bool progress() { return (waits() || has_arrivals()) && move(); }
  // Does a send or a receive wait for another rank?
  bool waits() const { return !sends_.empty() || !receives_.empty() || !arriving_.empty(); }
  bool active() const { return waits() || has_arrivals(); }
  bool moving_data() const { return !arriving_.empty() || sending_ > 0; }
  bool wakes() const { return wire_->wakes(); }

  // All members remove the process set. Its receives fail now, and its sends once the receivers have answered; none
  // meets a call of a later set with the same id.
  void on_removed(int process_set);
  // That rank has left. What still waits for it fails, and so does what is submitted later.
  void on_left(int rank);
  bool waits_for(int rank) const;
  // What has waited for longer than `patience`, and does not move.
  std::vector<StandingWait> list_waits(Clock::time_point now, Clock::duration patience);
  void list_pending(std::vector<PendingCall>& pending) const;
  void fail_all(const Error& error);

 private:
  // A process set: its id, and how many sets with this id were removed before.
  using Set = std::pair<int, std::uint64_t>;
  struct Own {
    Set set;
    Submission submission;
    bool sends_data = false;  // the other rank has matched it
  };
  // A send of another rank that no receive has matched yet.
  struct Offer {
    std::uint64_t number;
    Set set;
    Request request;
    bool whole;     // the bytes came with it
    Bytes content;  // then these
  };
  struct LocalFrame {
    FrameHead head;
    Bytes own;
    std::span<const std::byte> borrowed;
  };
  using Key = std::tuple<Set, int, int>;         // the set, sending rank, tag
  using Number = std::pair<int, std::uint64_t>;  // the other rank, number of the send

  std::span<std::byte> place(int from, const FrameHead& head) override;
  void on_frame(int from, const FrameHead& head) override;
  void on_sent(int to, const FrameHead& head) override;

  bool has_arrivals() const { return !local_.empty() || wire_->has_work(); }
  bool move();
  void post(int to, FrameHead head, Bytes own = {}, std::span<const std::byte> borrowed = {});
  void send(Own own);
  void receive(Own own);
  Offer decode_offer(int from, std::uint64_t number) const;
  void on_offer(int from, Offer offer);
  void match(int from, Offer offer, Own own);
  Set present(int process_set) const;
  void refuse(int from, const Offer& offer, const std::string& text);
  void on_answer(int from, const FrameHead& head);
  std::string misfit(int from, const Request& sent, const Request& received) const;
  void finish(Own own, const Error* error = nullptr);
  Error gone(const Request& request) const;
  template <class Call>
  void for_each(Call call) const;

  int rank_;
  std::unique_ptr<Wire> wire_;
  SubmissionOwner& owner_;
  std::uint64_t next_number_ = 0;
  std::size_t sending_ = 0;                  // entries of sends_ whose data is on its way
  std::map<Number, Own> sends_;              // no answer yet, or the data is on its way
  std::map<Key, std::deque<Own>> receives_;  // not matched
  std::map<Key, std::deque<Offer>> offers_;  // not matched
  std::map<Number, Own> arriving_;           // receives whose data is on its way
  std::map<int, std::uint64_t> removals_;    // by id of process sets
  std::deque<LocalFrame> local_;             // from this rank to itself
  std::vector<Bytes> bodies_;                // by rank: of the frame that arrives
  std::vector<bool> gone_;                   // by rank
  bool moved_ = false;                       // since the last list_waits()
  Clock::time_point still_since_;
};

}  // namespace sirtaki
