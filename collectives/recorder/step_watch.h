// Keeps the times of one rank's steps up to date, from its flight recorder.
#pragma once

#include <mutex>

#include "recorder/flight_recorder.h"
#include "recorder/wait_divider.h"

namespace sirtaki {

class StepWatch {
 public:
  explicit StepWatch(const FlightRecorder& recorder) : recorder_(recorder) {}

  // A job begins: forgets the steps of earlier ones.
  void restart();
  // Takes in the records since the last call. Call it at the end of each step, when no gradient is on its way. Does
  // nothing while another thread is here.
  void take_in();

  struct Times {
    WaitDivider divider;
    std::uint64_t lost = 0;  // records that were overwritten before they were taken in
  };
  // Up to now.
  Times times();

 private:
  void update();

  const FlightRecorder& recorder_;
  std::mutex mutex_;
  FlightRecorder::Cursor next_{};
  Times times_;
};

}  // namespace sirtaki
