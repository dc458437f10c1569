#include "watch/stall_watch.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <tuple>

#include "base/time_limits.h"
#include "base/topology.h"

namespace sirtaki {
namespace {

std::string round_seconds(Clock::duration duration) { return std::to_string(std::lround(seconds_of(duration))) + " s"; }

// The call site of the request for which this rank has waited longest; empty if unknown.
std::string site_of(int rank, const std::vector<Waiting>& waiting) {
  std::string site;
  Clock::time_point since = Clock::time_point::max();
  for (const Waiting& entry : waiting) {
    const auto position = std::ranges::find(entry.present, rank);
    if (position == entry.present.end() || entry.since >= since) continue;
    const std::string& own = entry.sites[static_cast<std::size_t>(position - entry.present.begin())];
    if (!own.empty()) std::tie(site, since) = std::tie(own, entry.since);
  }
  return site;
}

}  // namespace

StallWatch::StallWatch(std::vector<int> global_ranks, std::vector<std::string> hosts, const Settings& settings)
    : global_ranks_(std::move(global_ranks)),
      hosts_(std::move(hosts)),
      warning_seconds_(settings.stall_warning_seconds),
      abort_seconds_(settings.stall_abort_seconds) {}

StallWatch::Report StallWatch::look(const Coordinator& coordinator, Clock::time_point now) {
  Report report;
  const std::vector<Waiting> waiting = coordinator.waiting();
  report_resumed(waiting, now, report);
  Clock::time_point oldest = now;
  for (const Waiting& entry : waiting) oldest = std::min(oldest, entry.since);
  const double age = seconds_of(now - oldest);
  if (abort_seconds_ <= 0 || age < abort_seconds_) {
    asked_at_.reset();
    if (warning_seconds_ > 0 && age >= warning_seconds_) warn(waiting, now, report);
    return report;
  }
  if (!asked_at_) {
    std::set<int> missing;
    for (const Waiting& entry : waiting) missing.insert(entry.missing.begin(), entry.missing.end());
    asked_.assign(missing.begin(), missing.end());
    asked_at_ = now;
    report.ask = asked_;
    if (!asked_.empty()) return report;
  }
  const bool all_answered =
      std::all_of(asked_.begin(), asked_.end(), [&](int rank) { return coordinator.reports().contains(rank); });
  if (all_answered || now - *asked_at_ > kReportsOfLateRanks) {
    report.abort_cause = describe(coordinator, waiting, now);
    const Waiting& clearest = best_explained(waiting, now);
    report.missing = clearest.missing.empty() ? 0 : clearest.missing.front();
    report.site = site_of(report.missing, waiting);
  }
  return report;
}

// A rank that took another path in the program waits for all others, and they wait for it alone. So the request that
// the fewest ranks have not voted for names that rank best. Next criteria: the longest wait, then the lowest rank.
// Requests that have only begun to wait are probably normal.
const Waiting& StallWatch::best_explained(const std::vector<Waiting>& waiting, Clock::time_point now) {
  const auto longest = now - std::ranges::min_element(waiting, {}, &Waiting::since)->since;
  const auto key = [&](const Waiting& entry) {
    const bool counts = !entry.missing.empty() && now - entry.since >= longest / 4;
    return std::tuple(counts ? entry.missing.size() : std::numeric_limits<std::size_t>::max(), entry.since,
                      entry.missing.empty() ? 0 : entry.missing.front());
  };
  return *std::ranges::min_element(waiting, {}, key);
}

// One line for all late requests, at most once in each warning time.
void StallWatch::warn(const std::vector<Waiting>& waiting, Clock::time_point now, Report& report) {
  if (!warned_.empty() && seconds_of(now - last_warning_) < warning_seconds_) return;
  const Waiting& clearest = best_explained(waiting, now);
  std::string line = "'" + clearest.title + "' has waited " + round_seconds(now - clearest.since) + " for " +
                     late(clearest) + "; " + list(clearest.present) + " reached it";
  const std::string site = clearest.first_site();
  if (!site.empty()) line += " at " + site;
  if (waiting.size() > 1) line += "; " + std::to_string(waiting.size() - 1) + " more wait";
  if (abort_seconds_ > 0) {
    line += "; the job ends after " +
            round_seconds(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(abort_seconds_))) +
            " (SIRTAKI_STALL_SHUTDOWN_TIME_SECONDS, 0 = never)";
  }
  report.lines.push_back(line);
  last_warning_ = now;
  for (const Waiting& entry : waiting) warned_.try_emplace(entry.title, entry.since);
}

void StallWatch::report_resumed(const std::vector<Waiting>& waiting, Clock::time_point now, Report& report) {
  if (warned_.empty()) return;
  const bool still = std::any_of(waiting.begin(), waiting.end(), [&](const Waiting& entry) {
    const auto found = warned_.find(entry.title);
    return found != warned_.end() && found->second == entry.since;
  });
  if (still) return;
  Clock::time_point oldest = now;
  std::string title;
  for (const auto& [name, since] : warned_) {
    if (since < oldest) std::tie(oldest, title) = std::tie(since, name);
  }
  report.lines.push_back("'" + title + "' continues after " + round_seconds(now - oldest));
  warned_.clear();
}

std::string StallWatch::describe(const Coordinator& coordinator, const std::vector<Waiting>& waiting,
                                 Clock::time_point now) const {
  std::string text =
      "Stalled: some ranks did not submit a request of the others within " +
      round_seconds(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(abort_seconds_))) +
      " (SIRTAKI_STALL_SHUTDOWN_TIME_SECONDS, 0 = never)";
  const Waiting& clearest = best_explained(waiting, now);
  const std::string site = clearest.first_site();
  text += "; '" + clearest.title + "'" + (site.empty() ? "" : " from " + site) + " lacks " + late(clearest) + ".";
  for (std::size_t rank = 0; rank < global_ranks_.size(); ++rank) {
    text += "\n  " + describe_rank(static_cast<int>(rank), waiting, now);
    const auto answer = coordinator.reports().find(static_cast<int>(rank));
    if (answer != coordinator.reports().end()) {
      text += "\n" + answer->second.stacks;
    } else if (std::find(asked_.begin(), asked_.end(), static_cast<int>(rank)) != asked_.end()) {
      text += "\n    (it did not answer a request for its Python stack: dead or stopped, or its engine is held up)";
    }
  }
  if (std::ranges::all_of(waiting, [](const Waiting& entry) { return entry.missing.empty(); })) {
    return text +
           "\n  All ranks came, but what one sent to another did not: the network or a rank's process has failed.";
  }
  return text +
         "\n  Every rank must submit every tensor; look for a branch, a loop count or an exception that differs.";
}

std::string StallWatch::describe_rank(int rank, const std::vector<Waiting>& waiting, Clock::time_point now) const {
  constexpr int kShown = 5;
  const auto index = static_cast<std::size_t>(rank);
  std::string text = "rank " + std::to_string(global_ranks_[index]) + " (" + hosts_[index] + ")";
  int count = 0;
  for (const Waiting& entry : waiting) {
    const auto position = std::find(entry.present.begin(), entry.present.end(), rank);
    if (position == entry.present.end()) continue;
    if (++count > kShown) continue;
    const std::string& site = entry.sites[static_cast<std::size_t>(position - entry.present.begin())];
    text += (count == 1 ? " waits for " : ", ") + ("'" + entry.title + "'") + (site.empty() ? "" : " from " + site) +
            " for " + round_seconds(now - entry.since) + " (missing: " + late(entry) + ")";
  }
  if (count > kShown) text += " and " + std::to_string(count - kShown) + " more";
  return count == 0 ? text + " waits for nothing" : text;
}

std::string StallWatch::late(const Waiting& entry) const {
  return entry.missing.empty() ? "a message between two of them" : list(entry.missing);
}

std::string StallWatch::list_missing(const std::vector<Waiting>& waiting, Clock::time_point now) const {
  constexpr std::size_t kShown = 5;
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, waiting.size()); ++i) {
    text += "\n    '" + waiting[i].title + "' lacks " + late(waiting[i]) + " for " +
            seconds_since(waiting[i].since, now) + "; " + list(waiting[i].present) + " reached it";
  }
  if (waiting.size() > kShown) text += "\n    and " + std::to_string(waiting.size() - kShown) + " more";
  return text;
}

std::string StallWatch::list(const std::vector<int>& ranks) const {
  std::vector<int> global;
  global.reserve(ranks.size());
  for (const int rank : ranks) global.push_back(global_ranks_[static_cast<std::size_t>(rank)]);
  return list_ranks(global);
}

}  // namespace sirtaki
