// The control messages between the members of a group and its coordinator (rank 0 of the group).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "agreement/failure_cause.h"
#include "agreement/rank_status.h"
#include "base/error.h"
#include "base/serialization.h"
#include "base/types.h"
#include "observer/arrival.h"

namespace sirtaki {

// The number of an entry in the response cache.
using CacheSlot = std::int64_t;
inline constexpr CacheSlot kNoCacheSlot = -1;

// Says that a rank is ready for a request. A request that the group agreed on before is named by its cache slot.
struct Vote {
  CacheSlot slot = kNoCacheSlot;
  std::uint64_t sequence = 0;  // with a slot; otherwise part of the request
  Request request;             // without a slot
  // Set on rank 0's own votes only, and never sent. Votes have equal epochs if the program did not wait between them.
  std::uint64_t epoch = 0;
};

// A request that makes no progress: a rank holds it for a locked plan, its batch is running, or it is a send or a
// receive.
struct StandingWait {
  std::string title;
  std::string site;
  int peer = -1;  // the only rank that it waits for; -1: all ranks that do not list it
  bool operator==(const StandingWait&) const = default;
};

// Member to coordinator.
struct Announcement {
  std::uint64_t seen = 0;  // number of the last verdict that this member has acted on
  std::vector<Vote> votes;
  bool leaving = false;                 // this rank will submit nothing more
  std::optional<FailureCause> failure;  // why this rank cannot go on
  std::optional<RankStatus> report;     // answer to Verdict::asked
  bool wants_job_status = false;        // the program on this rank asks for the job status
  // All requests that have made no progress on this rank for some time; empty once they move again.
  std::optional<std::vector<StandingWait>> standing;
  bool wants_heartbeat = false;  // this rank waits, and has received nothing for a long time

  bool has_content() const {
    return !votes.empty() || leaving || failure.has_value() || report.has_value() || wants_job_status ||
           standing.has_value() || wants_heartbeat;
  }
};

// One request on which all ranks of the group agreed. `request` is the request of one of the ranks. `sizes` holds the
// numbers that differ by rank. allgather: rows of tensor t on rank r at [t * ranks + r]. alltoall: rows that rank f
// sends to rank t at [f * ranks + t].
struct Agreement {
  Request request;
  std::vector<std::int64_t> sizes;
};

struct Item {
  CacheSlot slot = kNoCacheSlot;
  std::uint64_t sequence = 0;
  int contributors = 0;                // number of ranks that voted; the others have joined
  std::optional<Agreement> agreement;  // absent: use the agreement stored in the cache slot
  // Known on the coordinator's rank only, and never sent: the member whose vote came last, and when.
  Arrival arrival{};
};

// One batch: the items of one collective, in this order.
using ItemList = std::vector<Item>;

// How the members arrived at a batch, for observers: as Arrival, but in times that any rank can use.
struct BatchArrival {
  int last = -1;  // rank within the group
  std::chrono::microseconds spread{};
  std::chrono::microseconds ago{};  // when the verdict was sent
};

struct Refusal {
  std::string name;  // empty: refuses all pending join() calls
  std::uint64_t sequence = 0;
  std::string message;
};

// Coordinator to every member. All members get the same bytes, so that all do the same.
struct Verdict {
  std::uint64_t number = 0;
  std::vector<ItemList> batches;
  std::vector<BatchArrival> arrivals;  // of the batches
  std::vector<Refusal> refusals;
  // A locked plan (locked_plan.h): batches of cache slots that repeat from now on without votes. It starts after each
  // slot has been agreed on once more.
  std::vector<std::vector<CacheSlot>> plan;
  std::vector<CacheSlot> forgotten;  // slots that are invalid from now on
  std::vector<std::int64_t> asked;   // ranks that must send their status
  std::vector<std::int64_t> gone;    // ranks that have left, while others wait to receive from them or to send to them
  int last_joined = -1;              // all ranks have joined; this rank was the last one
  bool all_left = false;
  bool alive = false;                   // a heartbeat; its number also reveals that an earlier verdict was lost
  std::string job_status;               // the status of all ranks, as text; empty if not requested
  std::optional<FailureCause> failure;  // why the job ends

  bool has_content() const {
    return !batches.empty() || !refusals.empty() || !asked.empty() || !gone.empty() || last_joined >= 0 || all_left ||
           alive || !job_status.empty() || failure.has_value();
  }
};

// How the members arrived at a batch that the coordinator has just decided on.
BatchArrival arrival_of(const ItemList& batch, Clock::time_point now);

Bytes encode(const Announcement& announcement);
Bytes encode(const Verdict& verdict);
Announcement decode_announcement(std::span<const std::byte> bytes);
Verdict decode_verdict(std::span<const std::byte> bytes);

void write(Writer& writer, const Request& request);
Request read_request(Reader& reader);

}  // namespace sirtaki
