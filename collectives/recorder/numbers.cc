#include "recorder/numbers.h"

#include <sstream>

namespace sirtaki {

std::string numbers_of(StepWatch& watch, std::uint64_t bytes) {
  const WaitDivider divider = watch.times().divider;
  const StepTimes& total = divider.total();
  std::ostringstream json;
  json << R"({"steps": )" << divider.steps() << R"(, "length": )" << total.length << R"(, "late": )" << total.wait.late
       << R"(, "agreement": )" << total.wait.agreement << R"(, "queue": )" << total.wait.queue << R"(, "copy": )"
       << total.wait.copy << R"(, "wire": )" << total.wait.wire << R"(, "host": )" << total.wait.host
       << R"(, "exchange": )" << total.exchange << R"(, "hidden": )" << total.hidden << R"(, "bytes": )" << bytes
       << R"(, "last": {)";
  const char* separator = "";
  for (const auto& [rank, counted] : divider.last_ranks()) {
    json << separator << '"' << rank << R"(": [)" << counted.steps << ", " << counted.lateness << "]";
    separator = ", ";
  }
  json << "}}";
  return json.str();
}

}  // namespace sirtaki
