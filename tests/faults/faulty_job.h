// A job of real engines, ranks as threads, in which one thing goes wrong; and what became of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fault.h"

namespace sirtaki::faults {

struct Job {
  Job(std::uint32_t seed, int number);  // of a run

  std::uint32_t seed = 0;  // of its program
  int ranks = 2;
  Fault fault;
};

struct Outcome {
  bool struck = false;              // was the job far enough for the fault to happen?
  bool struck_leaving = false;      // did it happen when its rank had all its sums?
  std::vector<std::string> errors;  // by rank; empty: it got all its sums, and they were right
  std::string wrong;                // a sum that was not right

  // Empty, or what this run shows to be wrong in the engine.
  std::string complaint(const Job& job) const;
  bool failed() const;
};

// Comes back when all ranks have ended.
Outcome run(const Job& job);

}  // namespace sirtaki::faults
