// Feeds each target with damaged bytes: fuzz [seconds for each] [seed] [target]. The n-th input of a seed is always the
// same; a crash is found again by the seed and the number that was printed last.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "base/clock.h"
#include "base/error.h"
#include "base/serialization.h"
#include "targets.h"

namespace sirtaki::fuzz {
namespace {

constexpr std::size_t kLongest = 4096;

std::array<char, 200> where{};  // what is under way, for the handler of a crash

void tell_where(int number) {
  static_cast<void>(!write(STDERR_FILENO, where.data(), std::char_traits<char>::length(where.data())));
  signal(number, SIG_DFL);
  raise(number);
}

class Mutator {
 public:
  Mutator(const std::vector<Bytes>& seeds, std::uint32_t seed) : seeds_(seeds), random_(seed) {}

  Bytes next() {
    Bytes bytes = seeds_[below(seeds_.size())];
    for (std::size_t i = 0, count = 1 + below(below(4) == 0 ? 30 : 4); i < count; ++i) mutate(bytes);
    bytes.resize(std::min(bytes.size(), kLongest));
    return bytes;
  }

 private:
  std::size_t below(std::size_t end) { return end == 0 ? 0 : random_() % end; }
  auto at(Bytes& bytes, std::size_t index) { return bytes.begin() + static_cast<std::ptrdiff_t>(index); }

  void mutate(Bytes& bytes) {
    const std::size_t place = below(bytes.size() + 1);
    switch (below(8)) {
      case 0:
        if (place < bytes.size()) bytes[place] ^= static_cast<std::byte>(1U << below(8));
        break;
      case 1:
        if (place < bytes.size()) bytes[place] = static_cast<std::byte>(random_());
        break;
      case 2:
        bytes.insert(at(bytes, place), static_cast<std::byte>(random_()));
        break;
      case 3:
        if (place < bytes.size()) {
          const std::size_t count = 1 + below(std::min<std::size_t>(bytes.size() - place, 8));
          bytes.erase(at(bytes, place), at(bytes, place + count));
        }
        break;
      case 4: {  // a number as the wire has it: small, or at the end of what fits
        constexpr std::array<std::uint64_t, 6> kNumbers = {0, 1, 127, 1ULL << 31, 1ULL << 62, ~0ULL};
        Writer writer;
        writer.number(kNumbers[below(kNumbers.size())] + below(3));
        splice(bytes, place, writer.take());
        break;
      }
      case 5:
        bytes.resize(place);
        break;
      default: {  // a part of another
        const Bytes& other = seeds_[below(seeds_.size())];
        const std::size_t begin = below(other.size());
        const std::size_t count = below(other.size() - begin + 1);
        splice(bytes, place,
               {other.begin() + static_cast<std::ptrdiff_t>(begin),
                other.begin() + static_cast<std::ptrdiff_t>(begin + count)});
      }
    }
  }

  void splice(Bytes& bytes, std::size_t place, const Bytes& part) {
    const std::size_t replaced = below(2) == 0 ? 0 : std::min(part.size(), bytes.size() - place);
    bytes.erase(at(bytes, place), at(bytes, place + replaced));
    bytes.insert(at(bytes, place), part.begin(), part.end());
  }

  const std::vector<Bytes>& seeds_;
  std::mt19937 random_;
};

// What is never damaged must get through, or nothing behind the first check would be looked at.
void check_seeds(const Target& target) {
  std::snprintf(where.data(), where.size(), "fuzz: %s, its seeds\n", target.name.c_str());
  const auto refused = [&](const Bytes& seed) {
    try {
      target.read(seed);
      return false;
    } catch (const Error&) {
      return true;
    }
  };
  if (std::ranges::all_of(target.seeds, refused)) std::abort();
}

void run(const Target& target, double seconds, std::uint32_t seed) {
  check_seeds(target);
  Mutator mutator(target.seeds, seed);
  std::uint64_t count = 0;
  std::uint64_t refused = 0;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  for (; Clock::now() < end; ++count) {
    const Bytes bytes = mutator.next();
    std::snprintf(where.data(), where.size(), "fuzz: %s, seed %u, input %llu\n", target.name.c_str(), seed,
                  static_cast<unsigned long long>(count));
    alarm(20);  // whatever is read must be read soon
    try {
      target.read(bytes);
    } catch (const Error&) {
      ++refused;
    }
  }
  alarm(0);
  std::printf("%-22s %10llu inputs, %3.0f %% refused\n", target.name.c_str(), static_cast<unsigned long long>(count),
              100.0 * static_cast<double>(refused) / static_cast<double>(std::max<std::uint64_t>(count, 1)));
  std::fflush(stdout);
}

}  // namespace
}  // namespace sirtaki::fuzz

int main(int argc, char** argv) {
  using namespace sirtaki::fuzz;
  for (const int number : {SIGSEGV, SIGABRT, SIGALRM, SIGFPE, SIGBUS}) signal(number, tell_where);
  const double seconds = argc > 1 ? std::atof(argv[1]) : 1;
  const auto seed = static_cast<std::uint32_t>(argc > 2 ? std::atoi(argv[2]) : 1);
  const std::string only = argc > 3 ? argv[3] : "";
  for (const Target& target : all_targets()) {
    if (only.empty() || target.name == only) run(target, seconds, seed);
  }
}
