// A rank of a job: takes requests from any thread, negotiates and runs them on a thread of its own. Several engines may
// live in one process (tests run ranks as threads); the binding keeps one.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "backoff.h"
#include "cause.h"
#include "doorbell.h"
#include "group.h"
#include "host_bells.h"
#include "names_in_use.h"
#include "topology.h"

namespace sirtaki {

struct EngineOptions {
  Settings settings;
  std::string program;  // what must be the same on all ranks, for example versions
  // For each group, in order of preference. `hosts`: a number for each of its ranks, equal where they share a host.
  std::function<DataPlanes(Transport&, const std::vector<int>& hosts)> make_planes;
  std::function<void(const std::string&)> say;  // one line for people
  // The stacks of this process's threads when its interpreter does not answer; optional.
  std::function<std::string()> stacks_by_force;
};

class Engine final : private GroupOwner {
 public:
  // Blocks until all ranks of the transport have made theirs. Throws Error(kPrecondition) naming who is missing or
  // differs.
  Engine(EngineOptions options, std::unique_ptr<Transport> world);
  // Without shutdown() before, the job is treated as failed on this rank.
  ~Engine();

  const Topology& topology() const { return topology_; }

  // Any thread. Throws Error at once for what this rank can see is wrong. request.root is a global rank; an empty name
  // is numbered. Of add_process_set, splits are the global ranks; of remove_process_set, the id.
  std::shared_ptr<Work> submit(int group, Request request, std::vector<Address> addresses, Allocate allocate = nullptr,
                               EventPtr ready = nullptr);
  // The same without waking the engine, for a caller that calls wait(), advance() or hurry() right afterwards.
  std::shared_ptr<Work> submit_quietly(int group, Request request, std::vector<Address> addresses,
                                       Allocate allocate = nullptr, EventPtr ready = nullptr);

  // The same for a caller that has other things to do before it waits. Where the engine's thread has no core of its own
  // and meets nobody outside this host, it would only take turns with the caller, so it is not woken for this.
  std::shared_ptr<Work> submit_ahead(int group, Request request, std::vector<Address> addresses,
                                     EventPtr ready = nullptr);

  // Any thread: blocks until the work is done. False if a signal may have come: look after it and call again, without
  // `help`. A thread that would only sleep does the engine's work itself if the engine sleeps: a small collective then
  // costs no hand-over between threads.
  bool wait(Work& work, bool help = true);
  // Any thread that may not wait: does the engine's work for a moment if the engine sleeps, and wakes it if that was
  // not enough.
  void advance(Work& work);
  // The program has seen that a work is done without waiting for it.
  void noticed() { epoch_.fetch_add(1, std::memory_order_release); }
  // Work::then(), for a program that goes on in the callback: it learns of the result there, whichever thread calls.
  template <class Callback>
  void follow(Work& work, Callback callback) {
    work.then([this, callback = std::move(callback)](Work& done) {
      noticed();
      callback(done);
    });
  }
  // Somebody wants a work soon: the engine should not nap for long.
  void hurry() { doorbell_.ring(true); }

  // Leaves together with all other ranks, then ends the thread. After a failure it does not wait for the others.
  void shutdown();

  // Any thread: the job cannot go on. Fails everything here and on the other ranks; a rank of -1 in the cause stands
  // for this one. Gives the cause that all ranks are told: the first, which may be another one's.
  Cause fail_job(Cause cause);
  // After fail_job(): ends the job for all ranks, by the transport's means. May not return.
  void abort_job(int exit_code);

  std::map<int, std::vector<int>> process_sets() const;
  std::string failure() const;  // empty while all is well
  std::optional<Cause> cause() const;
  void set_fusion_threshold(std::int64_t bytes);
  // Counts from now on what waits cost (Statistics::wait_cpu_ns).
  void time_waits() { times_waits_ = true; }
  const Statistics& statistics() const { return statistics_; }
  // How often each data plane was chosen, by its name.
  std::map<std::string, std::uint64_t> plane_uses() const { return plane_uses_.all(); }
  // The name of the transport that carries control messages.
  const std::string& control() const { return control_; }

  // A rank of this host whose process has died, -1 if none is known.
  int dead_rank() const { return bells_ == nullptr ? -1 : bells_->find_dead(); }
  // How this rank stands, and how all do as far as they answer; for people. Any thread; blocks for some seconds at
  // most.
  std::string report();
  std::string picture();

  // Blocks until somebody wants this process's Python stacks (true), or the engine ends (false).
  bool wait_for_question();
  void answer(const std::string& stacks);

 private:
  struct ProcessSet {
    std::vector<int> ranks;  // global
    int rank = -1;           // this process within it, or -1
    NamesInUse names;
    std::uint64_t counters[kVerbCount] = {};
  };
  struct Queued {
    int group;
    Submission submission;
    std::shared_ptr<Work> after;  // an earlier call of the same name that has to be done first, or null
  };
  // What the engine waits for when a step has moved nothing.
  struct Outlook {
    bool active = false;       // something is under way
    bool moving_data = false;  // a collective is
    bool wakes = true;         // whoever can bring it forward wakes this rank
    bool watching = false;     // a GPU has not finished what it was given
  };
  using Role = std::unique_lock<std::mutex>;
  // For Python to answer with its stacks.
  static constexpr std::chrono::milliseconds kPatienceWithInterpreter{1500};

  static Error shut_down();
  std::shared_ptr<Work> enqueue(int group, Request request, std::vector<Address> addresses, Allocate allocate,
                                EventPtr ready);
  void run();
  void pin();
  bool step();
  Outlook outlook() const;
  void rest(Role& role);
  void look_around();
  int find_dying() const;
  bool is_engines_own(std::thread::id thread) const;
  void help(Work& work, std::chrono::nanoseconds patience, bool may_sleep);
  bool help_once(Work& work, bool may_sleep);
  void hand_back(std::uint32_t rings_before);
  void wake_for_failure();
  void take_in_queue();
  void admit(Queued queued);
  void take_in_questions();
  void answer_questions(const std::string& stacks);
  std::string describe() const;
  void note_done(const Request& request);
  std::string wait_for(std::optional<std::string>& text, bool& wanted, std::chrono::milliseconds patience);
  Cause own_cause(CauseKind kind, const std::string& text) const;
  void fail();
  void adopt(const JobFailure& failure);
  void set_failure(const std::exception& error);
  void fail_everything(const Error& error);
  void agree_on_failure();
  void flush_world();
  bool ended();
  bool may_stop() const;
  void join_thread();
  void make_group(int id, std::vector<int> ranks, std::unique_ptr<Transport> transport);
  PlanLane make_lane(Transport& transport, const std::vector<int>& hosts);
  DataPlanes make_planes(Transport& transport, const std::vector<int>& hosts);
  void fill_in(const ProcessSet& set, Request& request) const;
  ProcessSet& set_for(int group, const Request& request);

  void on_finished(int group, Submission& submission, Result result, const Error* error) override;
  void on_all_joined(int group) override;
  void on_process_set(const Agreement& agreement, std::optional<Submission> submission) override;
  void on_asked(int group) override;
  void on_picture(const std::string& picture) override;
  void say(const std::string& line) override;
  int add_process_set(const std::vector<int>& ranks);
  void remove_process_set(int id);

  EngineOptions options_;
  Statistics statistics_;
  std::vector<std::string> hosts_;  // names, by rank
  std::vector<int> host_numbers_;
  std::string control_;
  PlaneUses plane_uses_;
  Topology topology_;
  std::shared_ptr<HostBells> bells_;  // where all ranks share a host
  bool works_beside_ = true;  // is there a core for the engine's thread, or somebody outside this host to work with?
  Doorbell doorbell_;
  Backoff backoff_;

  // Who holds this does the engine's work: its thread, except while that sleeps and another thread waits for a work.
  // All that follows, up to the mutex, is for the holder only.
  std::mutex role_;
  std::atomic<std::thread::id> holder_;  // of the role, if a thread that helps
  std::atomic<std::thread::id> own_thread_;
  bool over_ = false;
  std::map<int, std::unique_ptr<Group>> groups_;
  std::vector<std::unique_ptr<Group>> closing_;  // removed, but a collective still runs
  std::vector<Queued> postponed_;                // until what they come after is done
  int next_id_ = 1;
  std::vector<int> free_ids_;
  std::chrono::steady_clock::time_point next_look_;

  // For reports (engine_report.cc).
  std::vector<int> asking_;  // groups whose coordinator waits for a report; kOwn: a thread of this process does
  Clock::time_point asked_at_;
  Request last_done_;  // without its tensors
  Clock::time_point last_done_at_;
  std::uint64_t done_count_ = 0;

  // What of the shared state below has been taken in.
  std::uint32_t rings_taken_ = 0;
  std::uint32_t quiet_taken_ = 0;
  bool leave_taken_ = false;

  // Changes of the shared state that nobody rang for.
  std::atomic<std::uint32_t> quiet_{1};
  std::atomic<bool> times_waits_{false};
  // Waits for a work by the program's threads. Whoever waits has submitted all it means to for the time being, which
  // may be less than a locked plan expects.
  std::atomic<std::uint64_t> waits_begun_{0};
  std::atomic<std::uint64_t> waits_ended_{0};
  // How often the program has learned of a result: what it asks for afterwards may depend on that.
  std::atomic<std::uint64_t> epoch_{0};

  // Shared, under the mutex.
  mutable std::mutex mutex_;
  std::map<int, ProcessSet> sets_;
  std::vector<Queued> queue_;
  std::optional<Cause> failure_;
  bool failure_agreed_ = false;  // by all ranks, as far as they can be reached
  bool failure_told_ = false;    // as well as could be
  std::condition_variable failure_changed_;
  std::optional<std::int64_t> new_fusion_threshold_;
  std::optional<std::string> answer_;  // the Python stacks
  bool has_questions_ = false;         // for the engine's thread: answer_ or one of the next two is new
  bool report_wanted_ = false;
  bool picture_wanted_ = false;
  std::optional<std::string> report_;
  std::optional<std::string> picture_;
  std::condition_variable report_changed_;
  std::optional<int> exit_code_;
  bool leaving_ = false;
  bool gone_ = false;  // the engine's thread

  std::mutex question_mutex_;
  std::condition_variable question_changed_;
  bool asked_ = false;
  bool no_more_questions_ = false;

  std::mutex join_mutex_;
  std::thread thread_;
};

}  // namespace sirtaki
