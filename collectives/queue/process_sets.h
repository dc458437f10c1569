// The process sets of a job: the global ranks of each set, and the names of this rank's calls there. Every rank has the
// same table of ids and ranks, except for sets that their members made alone. Has no lock: its owner locks it.
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

// Sets that their members made alone have ids from here on. Their members have agreed on the id before. Each record of
// a flight recorder has 15 bits for the id.
inline constexpr int kFirstMembersOnlySet = 1 << 13;
inline constexpr int kEndOfProcessSets = 1 << 15;
// Adds or removes such a set: `root` or the only split is its id.
bool is_about_members_only_set(const Request& request);

class ProcessSets {
 public:
  ProcessSets(int rank, int job_size) : rank_(rank), job_size_(job_size) {}

  void add(int id, std::vector<int> ranks);
  void remove(int id) { sets_.erase(id); }
  // Null if there is no such set.
  ProcessSet* find(int id);
  // The id of the set with these ranks.
  std::optional<int> id_of(const std::vector<int>& ranks) const;
  // The smallest id that no set has: the same on all ranks.
  int unused_id() const;
  std::map<int, std::vector<int>> ranks() const;

  // The set with this id, for the request. Throws Error(kInvalidArgument) if there is no such set, or this rank is no
  // member.
  ProcessSet& member_set(int id, const Request& request);
  // Makes requests of different ranks comparable: the root becomes a rank of the group, a new set's ranks are sorted.
  // Throws Error(kInvalidArgument) if the root or the other end is no member, a new set has wrong ranks, or a set
  // cannot be removed.
  void resolve_ranks(const ProcessSet& set, Request& request) const;

 private:
  void check_new_set(Request& request) const;

  int rank_;
  int job_size_;
  std::map<int, ProcessSet> sets_;
};

}  // namespace sirtaki
