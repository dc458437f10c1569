#include "settings.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "error.h"

namespace sirtaki {
namespace {

struct Variable {
  std::string name;
  std::string value;
};

std::optional<Variable> look_up(const std::string& name) {
  for (const char* prefix : {"SIRTAKI_", "HOROVOD_"}) {
    const std::string full = prefix + name;
    const char* value = std::getenv(full.c_str());
    if (value != nullptr && *value != '\0') return Variable{full, value};
  }
  return std::nullopt;
}

// Leaves `target` alone when the variable is not set.
template <class Number>
void read(const std::string& name, Number maximum, Number& target) {
  const auto variable = look_up(name);
  if (!variable) return;
  const std::string& text = variable->value;
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool complete = error == std::errc() && end == text.data() + text.size();
  if (!complete || !(value >= 0) || value > maximum) {
    throw Error(ErrorKind::kInvalidArgument,
                variable->name + "='" + text + "': expected a number from 0 to " + std::to_string(maximum));
  }
  target = value;
}

}  // namespace

Settings Settings::from_environment() {
  Settings settings;
  read("FUSION_THRESHOLD", std::int64_t{1} << 40, settings.fusion_threshold);
  read("CACHE_CAPACITY", 1 << 20, settings.cache_capacity);
  read("STALL_CHECK_TIME_SECONDS", 1e9, settings.stall_warning_seconds);
  read("STALL_SHUTDOWN_TIME_SECONDS", 1e9, settings.stall_abort_seconds);
  read("START_TIMEOUT", 1e9, settings.start_timeout_seconds);
  if (const auto variable = look_up("CPU_OPERATIONS")) {
    if (variable->value != "shm" && variable->value != "mpi") {
      throw Error(ErrorKind::kInvalidArgument, variable->name + "='" + variable->value + "': expected 'shm' or 'mpi'");
    }
    settings.shared_memory = variable->value == "shm";
  }
  int disabled = 0;
  read("STALL_CHECK_DISABLE", 1, disabled);
  if (disabled != 0) settings.stall_warning_seconds = settings.stall_abort_seconds = 0;
  return settings;
}

std::string Settings::agreed() const {
  return "SIRTAKI_CACHE_CAPACITY=" + std::to_string(cache_capacity) +
         " SIRTAKI_CPU_OPERATIONS=" + (shared_memory ? "shm" : "mpi");
}

}  // namespace sirtaki
