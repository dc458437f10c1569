// A rank of a job: takes requests from any thread, then negotiates and runs them on its own thread. Owns the parts that
// do this, and connects them. A process may have several engines (tests run ranks as threads); the binding has one.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "agreement/failure_cause.h"
#include "base/topology.h"
#include "engine/engine_lock.h"
#include "engine/failure_state.h"
#include "engine/groups.h"
#include "engine/status_inquiry.h"
#include "fabric/fabric.h"
#include "host/clock_difference.h"
#include "host/host_bells.h"
#include "observer/observer.h"
#include "observer/statistics.h"
#include "queue/submit_queue.h"

namespace sirtaki {

struct EngineOptions {
  Settings settings;
  std::string program;                          // must be equal on all ranks, for example versions
  std::function<void(const std::string&)> log;  // one line for people
  // Gets the stacks of this process's threads when its interpreter does not answer; optional.
  std::function<std::string()> stacks_by_force;
};

class Engine final : private GroupOwner {
 public:
  // Blocks until all ranks of the fabric have made their engine. Throws Error(kPrecondition) that names the ranks that
  // are missing or differ.
  Engine(EngineOptions options, std::unique_ptr<Fabric> world);
  // Without an earlier shutdown(), the job fails because of this rank.
  ~Engine();

  const Topology& topology() const { return topology_; }

  // Any thread: the only way in is queue().put().
  SubmitQueue& queue() { return queue_; }

  // Any thread: blocks until the work is done. False if a signal may have come: handle it, then call again without
  // `may_help`. With `may_help`, the calling thread does the engine's work itself while the engine's thread sleeps.
  bool wait(Work& work, bool may_help = true);
  // For any thread that must not block: does the engine's work for a moment if the engine sleeps. Wakes the engine if
  // that was not enough.
  void poll(Work& work) {
    if (!work.done()) lock_.poll(work);
  }
  // Work::then() for a program that continues in the callback. The callback reads the result, on whichever thread it
  // runs.
  template <class Callback>
  void follow(Work& work, Callback callback) {
    work.then([this, callback = std::move(callback)](Work& done) {
      queue_.begin_epoch();
      callback(done);
    });
  }
  // A thread needs a work soon, so this ends the engine's sleep or nap.
  void wake() { doorbell_.ring(true); }

  // Leaves together with all other ranks, then ends the thread. After a failure it does not wait for the others.
  void shutdown();

  // Any thread: the job cannot continue. Fails all works here and on the other ranks. A rank of -1 in `cause` means
  // this rank. Returns the cause that all ranks report: the first one, which may be another rank's.
  FailureCause fail_job(FailureCause cause);
  // After fail_job(): ends the processes of all ranks through the fabric. May not return.
  void abort_job(int exit_code);

  std::map<int, std::vector<int>> process_sets();
  std::string failure() const;  // empty if the job has not failed
  std::optional<FailureCause> cause() const { return failure_.cause(); }
  void set_fusion_threshold(std::int64_t bytes);
  // Any thread. Calls the observer from now on; it must outlive this engine.
  void observe(Observer& observer) { observers_.add(observer); }
  // Any thread of the program: the adapter has waited for all gradients of a training step.
  void end_step() { observers_.announce(&Observer::on_step_ended); }
  // Counts the cost of waits from now on (Statistics::wait_cpu_ns).
  void time_waits() { statistics_.time_waits(); }
  const Statistics& statistics() const { return statistics_; }
  const ClockDifference& clock_difference() const { return clock_; }
  // The name of the transport that carries control messages.
  const std::string& control() const { return control_; }

  // In a child that this process has forked, where this object is otherwise not used.
  void on_forked_child() {
    if (Fabric* const network = network_) network->on_forked_child();
  }

  // A rank of this host whose process has died, -1 if none is known.
  int dead_rank() const { return bells_ == nullptr ? -1 : bells_->find_dead(); }
  // Any thread. See StatusInquiry.
  std::string report() { return inquiry_.report(); }
  std::string job_status() { return inquiry_.job_status(); }
  bool wait_for_question() { return inquiry_.wait_for_question(); }
  void answer(const std::string& stacks) { inquiry_.answer(stacks); }

 private:
  static constexpr int kNoExit = -1;
  friend class EngineLock<Engine>;

  // For EngineLock.
  void take_in();
  bool progress(bool awaited) { return groups_.progress(awaited); }
  Activity activity() const;
  void look(Clock::time_point now);
  bool shares_core() const { return !queue_.has_core(); }
  bool may_gather() const { return queue_.may_gather(); }
  void before_sleep() { groups_.world().fabric().before_sleep(); }
  void note_idle() { observers_.announce(&Observer::on_idle); }
  void record(const std::exception& error);

  void run();
  void pin();
  bool ended() const;
  void join_thread();

  FailureCause own_cause(FailureKind kind, const std::string& text) const;
  int find_dying() const;
  void on_failure(const FailureCause& cause);
  void post_failure();
  void fail();
  void fail_everything(const Error& error);
  void agree_on_failure();
  void flush_world();

  void make_group(int id, std::vector<int> ranks, std::unique_ptr<Fabric> fabric);
  PlanChannel make_plan_channel(Fabric& fabric, const std::vector<int>& hosts);
  int add_process_set(const std::vector<int>& ranks);
  bool run_here(SubmitQueue::Entry& entry);
  void remove_process_set(int id);

  void on_finished(int group, Submission& submission, Result result, const Error* error) override;
  void on_all_joined(int group) override;
  void on_process_set(const Agreement& agreement, std::optional<Submission> submission) override;
  void on_asked(int group) override { inquiry_.collect(group); }
  void on_job_status(const std::string& job_status) override { inquiry_.set_job_status(job_status); }
  std::vector<StandingWait> list_waits_for_peers(Clock::time_point now) override;
  void on_gone(int rank) override { groups_.mailbox().on_left(rank); }
  void log(const std::string& line) override { options_.log(line); }

  EngineOptions options_;
  Observers observers_;
  Statistics statistics_;
  std::string control_;
  Topology topology_;
  ClockDifference clock_;
  std::atomic<Fabric*> network_{nullptr};  // of all ranks; null once it has ended
  std::shared_ptr<HostBells> bells_;       // null unless all ranks share a host
  Clock::time_point first_dead_look_;      // when a dead rank was first seen for which this rank waits

  // The mutexes of these parts are locked in this order: failure_, inquiry_, queue_. The engine lock comes first.
  Doorbell doorbell_;
  SubmitQueue queue_;
  Groups groups_;
  StatusInquiry inquiry_;
  FailureState failure_;
  EngineLock<Engine> lock_;

  std::atomic<bool> leave_asked_{false};
  std::atomic<int> exit_code_{kNoExit};
  std::mutex join_mutex_;
  std::thread thread_;
};

}  // namespace sirtaki
