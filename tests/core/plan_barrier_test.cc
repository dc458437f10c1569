// What the words of a plan barrier say about the arrivals.
#include "plane/plan_barrier.h"

#include <doctest/doctest.h>

namespace sirtaki::testing {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

class LastArrival final : public Observer {
 public:
  Arrival arrival;
  void on_all_arrived(const BatchEvent& batch) override { arrival = batch.arrival; }
};

TEST_CASE("A barrier names the last rank and its lateness, also between hosts") {
  const Clock::time_point start{std::chrono::hours(100)};
  const milliseconds ahead{1500};  // rank 70's clock
  PlanBarrier own(false, 1, {3, {}, start + microseconds(200)});
  const PlanBarrier first(false, 1, {0, {}, start});
  const PlanBarrier last(false, 1, {70, ahead, start + ahead + milliseconds(5)});
  LastArrival observer;
  Observers observers;
  observers.add(observer);
  BatchEvent batch;
  own.observers = &observers;
  own.batch = &batch;
  own.merge(last.words);
  own.merge(first.words);
  own.conclude();
  CHECK(observer.arrival.last == 70);
  CHECK(std::chrono::abs(observer.arrival.spread - milliseconds(5)) <= microseconds(1));
  CHECK(std::chrono::abs(observer.arrival.at - (start + milliseconds(5))) <= microseconds(1));
}

}  // namespace
}  // namespace sirtaki::testing
