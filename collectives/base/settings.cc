#include "base/settings.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string_view>

#include "base/error.h"

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

void read_flag(const std::string& name, bool& target) {
  int value = target ? 1 : 0;
  read(name, 1, value);
  target = value != 0;
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

void read_cores(std::vector<int>& target) {
  const auto variable = look_up("THREAD_AFFINITY");
  if (!variable) return;
  std::istringstream list(variable->value);
  for (std::string item; std::getline(list, item, ',');) {
    int core = -1;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), core);
    if (error != std::errc() || end != item.data() + item.size() || core < 0) {
      throw Error(ErrorKind::kInvalidArgument,
                  variable->name + "='" + variable->value + "': expected numbers of cores with commas between them");
    }
    target.push_back(core);
  }
}

void read_level(bool& log_warnings) {
  const auto variable = look_up("LOG_LEVEL");
  if (!variable) return;
  const std::string level = lower(variable->value);
  constexpr std::array<std::string_view, 6> kLevels = {"trace", "debug", "info", "warning", "error", "fatal"};
  const auto found = std::find(kLevels.begin(), kLevels.end(), level);
  if (found == kLevels.end()) {
    throw Error(ErrorKind::kInvalidArgument,
                variable->name + "='" + variable->value + "': expected trace, debug, info, warning, error or fatal");
  }
  log_warnings = found - kLevels.begin() <= 3;
}

}  // namespace

Settings Settings::from_environment() {
  Settings settings;
  read("FUSION_THRESHOLD", std::int64_t{1} << 40, settings.fusion_threshold);
  read("CACHE_CAPACITY", 1 << 20, settings.cache_capacity);
  read("STALL_CHECK_TIME_SECONDS", 1e9, settings.stall_warning_seconds);
  read("STALL_SHUTDOWN_TIME_SECONDS", 1e9, settings.stall_abort_seconds);
  read("START_TIMEOUT", 1e9, settings.start_timeout_seconds);
  read("GLOO_TIMEOUT_SECONDS", 86400, settings.silence_seconds);
  if (const auto variable = look_up("CPU_OPERATIONS")) {
    if (variable->value != "shm" && variable->value != "mpi") {
      throw Error(ErrorKind::kInvalidArgument, variable->name + "='" + variable->value + "': expected 'shm' or 'mpi'");
    }
    settings.shared_memory = variable->value == "shm";
  }
  read_flag("LOCK_PLAN", settings.lock_plan);
  read_flag("RECORDER", settings.recorder);
  if (const auto variable = look_up("HOSTNAME")) settings.host_name = variable->value;
  if (const auto variable = look_up("GPU_OPERATIONS")) {
    settings.gpu_operations = lower(variable->value);
    if (settings.gpu_operations != "nccl" && settings.gpu_operations != "mpi") {
      throw Error(ErrorKind::kInvalidArgument, variable->name + "='" + variable->value + "': expected 'nccl' or 'mpi'");
    }
  }
  read_flag("HIERARCHICAL_ALLREDUCE", settings.hierarchical_allreduce);
  read_cores(settings.thread_affinity);
  read_level(settings.log_warnings);
  bool threads_disabled = false;
  read_flag("MPI_THREADS_DISABLE", threads_disabled);
  settings.mpi_threads = !threads_disabled;
  bool time_hidden = false;
  read_flag("LOG_HIDE_TIME", time_hidden);
  settings.log_time = !time_hidden;
  int disabled = 0;
  read("STALL_CHECK_DISABLE", 1, disabled);
  if (disabled != 0) settings.stall_warning_seconds = settings.stall_abort_seconds = 0;
  return settings;
}

std::string Settings::agreed() const {
  return "SIRTAKI_CACHE_CAPACITY=" + std::to_string(cache_capacity) +
         " SIRTAKI_CPU_OPERATIONS=" + (shared_memory ? "shm" : "mpi") +
         " SIRTAKI_LOCK_PLAN=" + (lock_plan ? "1" : "0") +
         (gpu_operations.empty() ? "" : " SIRTAKI_GPU_OPERATIONS=" + gpu_operations) +
         (hierarchical_allreduce ? " SIRTAKI_HIERARCHICAL_ALLREDUCE=1" : "");
}

}  // namespace sirtaki
