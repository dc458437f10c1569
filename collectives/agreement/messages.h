// What members and the coordinator of a group tell each other.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "agreement/rank_status.h"
#include "base/error.h"
#include "base/failure_cause.h"
#include "base/serialization.h"
#include "base/types.h"

namespace sirtaki {

// A place in the response cache.
using CacheSlot = std::int64_t;
inline constexpr CacheSlot kNoCacheSlot = -1;

// "I am ready for this request." A request that the group agreed on before goes by its slot in the response cache.
struct Vote {
  CacheSlot slot = kNoCacheSlot;
  std::uint64_t sequence = 0;  // with a slot; otherwise part of the request
  Request request;             // without a slot
  // Of rank 0's own votes, does not travel: votes of equal epoch were asked for without waiting for any in between.
  std::uint64_t epoch = 0;
};

// Something that a rank holds for a locked plan, or runs, and that does not move.
struct StandingWait {
  std::string title;
  std::string site;
  bool operator==(const StandingWait&) const = default;
};

// Member to coordinator.
struct Announcement {
  std::uint64_t seen = 0;  // number of the last verdict that this member has acted on
  std::vector<Vote> votes;
  bool leaving = false;                 // this rank submits nothing more
  std::optional<FailureCause> failure;  // when this rank can't go on
  std::optional<RankStatus> report;     // answer to Verdict::asked
  bool wants_picture = false;           // somebody asks this rank how all ranks stand
  // All that has stood still on this rank for long; empty once it moves again.
  std::optional<std::vector<StandingWait>> standing;
  bool asks = false;  // for a sign of life: this rank waits, and has heard nothing for long

  bool says_something() const {
    return !votes.empty() || leaving || failure.has_value() || report.has_value() || wants_picture ||
           standing.has_value() || asks;
  }
};

// What all ranks of the group agreed on about one request. `request` is any one rank's; sizes hold what differs by
// rank: allgather: rows of tensor t on rank r at [t * ranks + r]; alltoall: rows from rank f to rank t at [f * ranks +
// t].
struct Agreement {
  Request request;
  std::vector<std::int64_t> sizes;
};

struct Item {
  CacheSlot slot = kNoCacheSlot;
  std::uint64_t sequence = 0;
  int contributors = 0;                // ranks that asked; the others have joined
  std::optional<Agreement> agreement;  // none: the one remembered under the slot
};

// One batch: items that travel together, in this order.
using ItemList = std::vector<Item>;

struct Refusal {
  std::string name;  // empty: all joins
  std::uint64_t sequence = 0;
  std::string message;
};

// Coordinator to every member, the same bytes for all, so that all act alike.
struct Verdict {
  std::uint64_t number = 0;
  std::vector<ItemList> batches;
  std::vector<Refusal> refusals;
  // Batches of slots that repeat from now on without votes, after each slot has been agreed on once more (plan.h).
  std::vector<std::vector<CacheSlot>> plan;
  std::vector<CacheSlot> forgotten;  // slots that are no longer valid
  std::vector<std::int64_t> asked;   // ranks that are to say how they stand
  int last_joined = -1;              // every rank has joined, this one last
  bool all_left = false;
  bool alive = false;                   // a sign of life; whoever has lost an earlier verdict notices it by this one
  std::string job_status;               // how all ranks stand; empty if nobody has asked
  std::optional<FailureCause> failure;  // the job ends

  bool says_something() const {
    return !batches.empty() || !refusals.empty() || !asked.empty() || last_joined >= 0 || all_left || alive ||
           !job_status.empty() || failure.has_value();
  }
};

Bytes encode(const Announcement& announcement);
Bytes encode(const Verdict& verdict);
Announcement decode_announcement(std::span<const std::byte> bytes);
Verdict decode_verdict(std::span<const std::byte> bytes);

void write(Writer& writer, const Request& request);
Request read_request(Reader& reader);

}  // namespace sirtaki
