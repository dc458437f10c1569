#include "agreement/rank_status.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace sirtaki {
namespace {

constexpr std::size_t kShown = 8;

std::string indented(const std::string& text) {
  std::string result = "\n    ";
  for (const char c : text) {
    result += c;
    if (c == '\n') result += "    ";
  }
  return result;
}

}  // namespace

std::string seconds_since(Clock::time_point since, Clock::time_point now) {
  std::array<char, 32> text{};
  const double seconds = std::max(0.0, std::chrono::duration<double>(now - since).count());
  std::snprintf(text.data(), text.size(), "%.1f s", seconds);
  return text.data();
}

std::string list_pending(std::vector<PendingCall> pending, Clock::time_point now) {
  std::ranges::stable_sort(pending, {}, &PendingCall::since);
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, pending.size()); ++i) {
    const PendingCall& entry = pending[i];
    text += "\n    " + std::string(name_of(entry.verb)) + " '" + entry.title + "'" +
            (entry.site.empty() ? "" : " from " + entry.site) + " for " + seconds_since(entry.since, now) + ": " +
            std::string(entry.state);
  }
  if (pending.size() > kShown) text += "\n    and " + std::to_string(pending.size() - kShown) + " more";
  return text;
}

std::string section_of(int rank, const std::string& host, const RankStatus& report) {
  const std::string text = "rank " + std::to_string(rank) + " on host " + host + ", " + report.doing;
  return report.stacks.empty() ? text : text + indented(report.stacks);
}

}  // namespace sirtaki
