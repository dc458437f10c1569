// Divides the time that this rank's program waits among its causes, step by step, from the records of its stations.
// Each moment of a wait gets exactly one cause, so the parts of a step add up to its wait. Takes constant memory.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "recorder/record.h"

namespace sirtaki {

// In nanoseconds.
struct WaitParts {
  std::int64_t late = 0;       // this rank had arrived, and another rank had not
  std::int64_t agreement = 0;  // all ranks had arrived, and this rank did not know it yet
  std::int64_t queue = 0;      // an earlier batch was under way, or the request was not looked at yet
  std::int64_t copy = 0;       // this rank copied and reduced
  std::int64_t wire = 0;       // this rank waited for the data of other ranks
  std::int64_t host = 0;       // everything was done, or the waiting thread got no core

  std::int64_t sum() const { return late + agreement + queue + copy + wire + host; }
  void add(const WaitParts& other);
  // Moves up to `delay` of the other parts to `host`: the thread was ready to run and got no core.
  void take_delay(std::int64_t delay);
};

struct StepTimes {
  std::int64_t length = 0;
  WaitParts wait;
  std::int64_t exchange = 0;  // a batch moved data
  std::int64_t hidden = 0;    // part of `exchange`: the program did not wait meanwhile
  std::int64_t delay = 0;     // the thread that ends the steps was ready to run and got no core
  void add(const StepTimes& other);
};

struct LastRank {
  std::uint64_t steps = 0;
  std::int64_t lateness = 0;  // sum over these steps: from the first to the last arrival
};

class WaitDivider {
 public:
  // The records since the last call, ordered by time.
  void add(std::span<const Record> records);
  // Records are missing before those of the next call. The step under way is not counted.
  void forget();

  // Steps are counted from the end of the first one on.
  std::uint64_t steps() const { return steps_; }
  const StepTimes& total() const { return total_; }
  const StepTimes& latest() const { return latest_; }
  // Since the last end of a step, or since the beginning.
  StepTimes open() const;
  // By global rank: the steps in which this rank came last.
  const std::map<int, LastRank>& last_ranks() const { return last_ranks_; }

 private:
  enum class Phase { kHost, kQueue, kArrival, kCopy, kWire };
  // What one executor of a group does.
  struct Lane {
    int queued = 0;
    bool running = false;
    bool arriving = false;
    bool suspended = false;
  };
  // Time since a moment, divided.
  struct Division {
    WaitParts parts;
    std::int64_t exchange = 0;                                    // a batch moved data meanwhile
    std::vector<std::pair<std::int64_t, std::int64_t>> arriving;  // late or agreement, which is not known yet

    void charge(Phase phase, std::int64_t from, std::int64_t to);
    void divide(std::int64_t boundary);
    WaitParts take();
  };

  void add(const Record& record);
  void pass_time(std::int64_t time);
  void apply(const Record& record);
  void apply_batch(RecordKind kind, const Record& record);
  void complete_request();
  void on_all_arrived(const Record& record);
  void on_wait_end(const Record& record);
  void on_step_end(const Record& record);
  bool waits_by_calls() const { return has_waited_ || waited_before_; }
  bool moves_data() const;
  Phase phase() const;

  std::int64_t now_ = 0;
  std::int64_t step_begin_ = 0;
  bool step_is_whole_ = false;
  std::map<std::uint16_t, Lane> lanes_;
  std::int64_t in_flight_ = 0;
  std::int64_t votes_ = 0;
  std::int64_t transfers_ = 0;  // sends and receives that are not complete
  int waiters_ = 0;
  bool has_waited_ = false;     // in this step
  bool waited_before_ = false;  // in the step before
  Division wait_;               // the wait under way
  // Since the last submission, until the last completion: what a program cannot hide behind its computing. Counts as
  // the wait in a program that waits elsewhere than in Engine::wait(), so that two steps pass without a wait.
  Division tail_;
  StepTimes open_;
  int last_ = -1;  // of the step under way, the rank that came last, and how late
  std::int64_t lateness_ = 0;
  StepTimes total_;
  StepTimes latest_;
  std::uint64_t steps_ = 0;
  std::map<int, LastRank> last_ranks_;
};

}  // namespace sirtaki
