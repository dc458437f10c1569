// The groups of this rank, with those of removed process sets until they have ended, and its mailbox. For the thread
// that does the engine's work.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/activity.h"
#include "engine/group.h"
#include "send_receive/mailbox.h"

namespace sirtaki {

class Groups {
 public:
  void add(int id, std::unique_ptr<Group> group) { groups_[id] = std::move(group); }
  // Null if this rank is no member.
  Group* find(int id);
  // The group of all ranks of the job.
  Group& world() { return *groups_.at(0); }
  // The process set was removed. Requests that were agreed on still run.
  void close(int id);
  void clear() {
    mailbox_.reset();
    groups_.clear();
  }
  // Call it once, after the group of all ranks was added: its transport carries the mailbox's frames.
  void add_mailbox(std::unique_ptr<Mailbox> mailbox) { mailbox_ = std::move(mailbox); }
  Mailbox& mailbox() { return *mailbox_; }

  // True if anything moved. `awaited`: see Group::progress().
  bool progress(bool awaited);
  Activity activity() const;
  void look(Clock::time_point now);
  // Does anything here wait for that rank?
  bool wait_for(int rank) const;
  // Leaves all groups together with their other ranks. Call it again if a group was added later.
  void leave();
  // All ranks have left all groups, and no message or batch is under way.
  bool ended() const;

  void fail_all(const Error& error);
  void set_fusion_threshold(std::int64_t bytes);
  // For people: this rank's pending requests and their missing ranks. Each line after the first is indented.
  std::string describe_pending(Clock::time_point now) const;
  // ": allreduce 'x' from train.py:7"; "" if nothing is pending.
  std::string oldest_pending() const;

 private:
  std::vector<PendingCall> pending() const;

  std::map<int, std::unique_ptr<Group>> groups_;
  std::vector<std::unique_ptr<Group>> closing_;
  std::unique_ptr<Mailbox> mailbox_;
};

}  // namespace sirtaki
