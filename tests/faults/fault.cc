#include "fault.h"

#include <array>

namespace sirtaki::faults {
namespace {

struct Way {
  Kind kind;
  Traffic traffic;
};

constexpr std::array kWays{
    Way{Kind::kNone, Traffic::kControl},    Way{Kind::kLate, Traffic::kControl},
    Way{Kind::kLate, Traffic::kData},       Way{Kind::kLost, Traffic::kControl},
    Way{Kind::kLost, Traffic::kData},       Way{Kind::kOvertaken, Traffic::kControl},
    Way{Kind::kOvertaken, Traffic::kData},  Way{Kind::kDoubled, Traffic::kControl},
    Way{Kind::kCutOff, Traffic::kControl},  Way{Kind::kCutOff, Traffic::kData},
    Way{Kind::kDamaged, Traffic::kControl}, Way{Kind::kSilent, Traffic::kControl},
    Way{Kind::kThrows, Traffic::kControl},
};

// Most jobs of the harness send more than that before they end.
constexpr std::uint32_t kControlMessages = 14;
constexpr std::uint32_t kDataMessages = 60;
constexpr std::uint32_t kOperations = 40;

}  // namespace

std::string name_of(Kind kind) {
  constexpr std::array names = {"none",    "late",    "lost",   "overtaken", "doubled",
                                "cut off", "damaged", "silent", "exception"};
  return names[static_cast<std::size_t>(kind)];
}

Fault Fault::random(std::mt19937& random, int ranks) {
  const Way way = kWays[random() % kWays.size()];
  Fault fault{.kind = way.kind, .traffic = way.traffic};
  fault.rank = static_cast<int>(random() % static_cast<std::uint32_t>(ranks));
  const std::uint32_t among = way.kind == Kind::kThrows          ? kOperations
                              : way.traffic == Traffic::kControl ? kControlMessages
                                                                 : kDataMessages;
  fault.number = random() % among;
  fault.seed = static_cast<std::uint32_t>(random());
  fault.delay = std::chrono::milliseconds(1 + random() % 100);
  return fault;
}

std::string Fault::text() const {
  if (kind == Kind::kNone) return "nothing";
  const std::string what = kind == Kind::kThrows          ? "operation "
                           : traffic == Traffic::kControl ? "control message "
                                                          : "data message ";
  return what + std::to_string(number) + " of rank " + std::to_string(rank) + " " + name_of(kind);
}

}  // namespace sirtaki::faults
