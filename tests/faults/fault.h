// One thing that goes wrong in a job, once, chosen by a seed.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace sirtaki::faults {

enum class Kind {
  kNone,
  kLate,       // a message comes after a while, and what follows it on its way comes after it
  kLost,       // a message never comes
  kOvertaken,  // a message comes after the next one on its way
  kDoubled,    // a message comes twice
  kCutOff,     // only a message's beginning comes
  kDamaged,    // some bits of a message are other ones
  kSilent,     // the rank goes on, but nothing that it sends arrives any more, nor anything at it
  kThrows,     // the rank's program ends by an exception
};
enum class Traffic { kControl, kData };

struct Fault {
  Kind kind = Kind::kNone;
  Traffic traffic = Traffic::kControl;
  int rank = 0;              // that sends, or whose program throws
  std::uint64_t number = 0;  // of the message among those that the rank sends in this traffic; of the operation
  std::uint32_t seed = 0;    // for where a message is damaged
  std::chrono::milliseconds delay{0};

  // Damage to data is not among them: MPI, shared memory and the network have checks of their own for that.
  static Fault random(std::mt19937& random, int ranks);
  std::string text() const;
};

std::string name_of(Kind kind);

// A transport that may hold something back.
class Holder {
 public:
  virtual bool let_go() = 0;  // of what is due; true if nothing is left

 protected:
  ~Holder() = default;
};

// What all transports of a job share: how far the rank that is hit has come.
struct Progress {
  std::atomic<std::uint64_t> control{0};
  std::atomic<std::uint64_t> data{0};
  std::atomic<bool> struck{false};
  std::atomic<bool> leaving{false};         // that rank has all its sums, and leaves
  std::atomic<bool> struck_leaving{false};  // it was then
  std::atomic<bool> silent{false};
  std::vector<Holder*> holders;  // of that rank, and used by it alone
};

}  // namespace sirtaki::faults
