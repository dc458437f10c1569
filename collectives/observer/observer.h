// The one interface through which an engine announces what happens at its stations. Statistics, job status, a flight
// recorder, a timeline or a tuner are observers: nothing else in the core counts or times.
//
// Rules for an observer:
// - It only observes. No decision of the engine may depend on an observer, since ranks may observe different things.
// - It must not throw, block, wait for a work, or call the engine. A call runs on the path of a gradient.
// - It reads the clock itself, if it needs the time. Arguments are valid only during the call.
// - It cannot be removed before the engine has ended. To switch it off, let it return at once.
// - Each function says which thread calls it:
//   "program": any thread of the program, several at once.
//   "engine": the thread that does the engine's work. That may be a waiting thread of the program. It is one thread at
//   a time, and each call sees the writes of the call before.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string_view>

#include "base/clock.h"
#include "base/error.h"
#include "base/types.h"
#include "device/device.h"
#include "observer/arrival.h"

namespace sirtaki {

// All ranks of a group have voted for a request.
struct AgreedEvent {
  int group = 0;
  const Request& request;
  Arrival arrival{};  // known on the coordinator's rank only
};

// One collective of a group. All ranks of the group give it the same number. Numbers count from 1, separately for
// batches that were voted for and for batches of locked plans.
struct BatchEvent {
  int group = 0;
  bool planned = false;  // a batch of a locked plan: it has no votes
  std::uint64_t number = 0;
  Verb verb = Verb::kAllreduce;
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;        // of this rank's inputs
  Arrival arrival{};              // from on_all_arrived() on
  const Request* only = nullptr;  // this rank's request, if the batch has one only
};

enum class BatchOutcome : std::uint8_t {
  kDone,       // the results are there; for a GPU, the collective is queued
  kRefused,    // no plane can run it; all ranks refuse it alike
  kCalledOff,  // a rank has departed from the locked plan: the same requests are voted for next
};

class Observer {
 public:
  virtual ~Observer() = default;

  // Program: a request was accepted. (A group of one rank may copy at once, which is not announced.)
  virtual void on_submitted(int /*group*/, const Request& /*request*/) {}
  // Program: the calling thread begins to wait for a work that is not done yet, and ends that wait.
  virtual void on_wait_begun() {}
  virtual void on_wait_ended() {}
  // Program: the adapter has waited for all gradients of a training step.
  virtual void on_step_ended() {}

  // Engine: this rank votes for a request, by its cache slot or with the whole request.
  virtual void on_voted(int /*group*/, const Request& /*request*/, bool /*by_slot*/) {}
  // Engine: the verdict has come that a request can run.
  virtual void on_agreed(const AgreedEvent& /*agreed*/) {}
  // Engine: a batch is complete and queued. For a planned batch: this rank has submitted all of its tensors.
  virtual void on_fused(const BatchEvent& /*batch*/) {}
  // Engine: a batch begins. A planned batch enters the barrier.
  virtual void on_started(const BatchEvent& /*batch*/) {}
  // Engine: all ranks have voted for all requests of a batch, which is not queued yet. Or all ranks have entered the
  // barrier of a planned batch, and none departs.
  virtual void on_all_arrived(const BatchEvent& /*batch*/) {}
  // Engine: a batch whose ranks have all arrived begins to wait for data of other ranks, and ends that wait.
  virtual void on_wire_begun(const BatchEvent& /*batch*/) {}
  virtual void on_wire_ended(const BatchEvent& /*batch*/) {}
  // Engine: work of a batch is about to be queued on this stream of a GPU, behind what it waits for. Then all of the
  // batch is queued, and this is announced once, as late as on_finished().
  virtual void on_queueing_begun(const BatchEvent& /*batch*/, Device& /*gpu*/, Stream /*stream*/) {}
  virtual void on_queueing_ended(const BatchEvent& /*batch*/, Device& /*gpu*/, Stream /*stream*/) {}
  // Engine: a data plane has carried the batch, or those of its tensors that have one dtype and device.
  virtual void on_transferred(const BatchEvent& /*batch*/, std::string_view /*plane*/) {}
  // Engine: a batch is over. Comes before the works of the batch are done. Not announced if the job fails meanwhile.
  // The on_completed() of its requests follow at once, unless it was called off.
  virtual void on_finished(const BatchEvent& /*batch*/, BatchOutcome /*outcome*/) {}
  // Engine: a request is over. Comes before its work is done. Null if it succeeded.
  virtual void on_completed(int /*group*/, const Request& /*request*/, const Error* /*error*/) {}

  // Engine: this rank follows a new locked plan, or has left its plan.
  virtual void on_plan_locked(int /*group*/) {}
  virtual void on_plan_left(int /*group*/) {}
  // Engine: control messages were sent to other ranks.
  virtual void on_messages_sent(int /*group*/, int /*count*/) {}
  // Engine: the engine's thread goes to sleep, and nothing is under way.
  virtual void on_idle() {}
};

// The observers of one engine. An announcement costs one indirect call for each of them.
class Observers {
 public:
  static constexpr std::size_t kMost = 6;

  // Any thread, at any time. The observer must live as long as the engine. Throws Error(kInvalidArgument) if there are
  // kMost already.
  void add(Observer& observer) {
    const std::lock_guard lock(adding_);
    const std::size_t count = count_.load(std::memory_order_relaxed);
    if (count == kMost) {
      throw Error(ErrorKind::kInvalidArgument,
                  "an engine has at most " + std::to_string(kMost) + " observers; reuse one instead of adding another");
    }
    observers_[count] = &observer;
    count_.store(count + 1, std::memory_order_release);
  }

  template <class... Parameters, class... Arguments>
  void announce(void (Observer::*station)(Parameters...), Arguments&&... arguments) const {
    const std::size_t count = count_.load(std::memory_order_acquire);
    for (std::size_t i = 0; i < count; ++i) (observers_[i]->*station)(arguments...);
  }

 private:
  std::array<Observer*, kMost> observers_{};
  std::atomic<std::size_t> count_{0};
  std::mutex adding_;
};

}  // namespace sirtaki
