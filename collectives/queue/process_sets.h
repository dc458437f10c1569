// The process sets of a job: the global ranks of each, and this rank's calls there. Every rank has the same table of
// ids and ranks. Not locked: its owner does that.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "queue/call_names.h"

namespace sirtaki {

struct ProcessSet {
  std::vector<int> ranks;  // global
  int rank = -1;           // this process within the set; -1: it is not a member
  CallNames names;
};

class ProcessSets {
 public:
  ProcessSets(int rank, int job_size) : rank_(rank), job_size_(job_size) {}

  void add(int id, std::vector<int> ranks);
  void remove(int id) { sets_.erase(id); }
  // Null if there is none.
  ProcessSet* find(int id);
  // The id of the set with these ranks.
  std::optional<int> id_of(const std::vector<int>& ranks) const;
  // The smallest id that no set has: the same on all ranks.
  int unused_id() const;
  std::map<int, std::vector<int>> ranks() const;

  // Of a request to set number `id`. Throws Error(kInvalidArgument) if there is no such set, or this rank is no member.
  ProcessSet& member_set(int id, const Request& request);
  // Turns the global ranks of a request into what the group's ranks compare. Throws Error(kInvalidArgument) with what
  // is wrong: a root that is no member, ranks that no new set can have, a set that cannot be removed.
  void resolve_ranks(const ProcessSet& set, Request& request) const;

 private:
  void check_new_set(Request& request) const;

  int rank_;
  int job_size_;
  std::map<int, ProcessSet> sets_;
};

}  // namespace sirtaki
