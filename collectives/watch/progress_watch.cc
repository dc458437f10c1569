#include "watch/progress_watch.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "agreement/failure_cause.h"
#include "base/error.h"

namespace sirtaki {
namespace {

// A waiting rank checks more often than this. After a longer gap its own process was stopped, and silence means
// nothing.
constexpr std::chrono::seconds kLookGap{2};

}  // namespace

ProgressWatch::ProgressWatch(int rank, std::vector<int> ranks, std::vector<std::string> hosts, const Settings& settings)
    : rank_(rank),
      ranks_(std::move(ranks)),
      hosts_(std::move(hosts)),
      warning_seconds_(settings.stall_warning_seconds),
      abort_seconds_(settings.stall_abort_seconds) {}

bool ProgressWatch::data_stands_still(Clock::time_point now) {
  if (std::exchange(data_moved_, false)) still_since_ = now;
  return now - still_since_ > kPatience;
}

std::optional<std::vector<StandingWait>> ProgressWatch::changed(std::vector<StandingWait> waits) {
  if (waits == reported_) return std::nullopt;
  reported_ = std::move(waits);
  return reported_;
}

// A living coordinator answers at once, whatever its program does. A stopped coordinator cannot report the stall that
// it causes; nor can one whose messages are lost. So each rank checks this itself.
bool ProgressWatch::must_ask_coordinator(bool waits, Clock::time_point now) {
  const bool verdict_came = std::exchange(verdict_came_, false);
  const bool looked = now - std::exchange(last_look_, now) < kLookGap;
  if (!waits || verdict_came || !looked) {
    silent_since_ = now;
    asked_ = false;
    return false;
  }
  const Clock::duration silence = now - silent_since_;
  double ask_after = std::numeric_limits<double>::infinity();
  if (warning_seconds_ > 0) ask_after = warning_seconds_;
  if (abort_seconds_ > 0) ask_after = std::min(ask_after, abort_seconds_ / 2);
  if (!asked_) {
    warn_at_ = now + kAnswer;
    return asked_ = seconds_of(silence) > ask_after;
  }
  if (abort_seconds_ > 0 && seconds_of(silence) >= abort_seconds_) fail(silence);
  return false;
}

std::string ProgressWatch::warning(Clock::time_point now) {
  if (rank_ != 1 || !asked_ || warning_seconds_ <= 0 || now < warn_at_) return "";
  warn_at_ = now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(warning_seconds_));
  const std::string end = abort_seconds_ > 0 ? "after " + std::to_string(std::lround(abort_seconds_)) + " s" : "never";
  return coordinator() + ", which coordinates, has not answered for " +
         std::to_string(std::lround(seconds_of(now - silent_since_))) +
         " s: it is stopped, or its host is cut off; the job ends " + end +
         " (SIRTAKI_STALL_SHUTDOWN_TIME_SECONDS, 0 = never)";
}

std::string ProgressWatch::coordinator() const { return "rank " + std::to_string(ranks_[0]) + " (" + hosts_[0] + ")"; }

void ProgressWatch::fail(Clock::duration silence) const {
  const int own = ranks_[static_cast<std::size_t>(rank_)];
  const std::string text = coordinator() + ", which coordinates, has not answered rank " + std::to_string(own) +
                           " for " + std::to_string(std::lround(seconds_of(silence))) +
                           " s (SIRTAKI_STALL_SHUTDOWN_TIME_SECONDS, 0 = never): it is dead or stopped, or its "
                           "message was lost.";
  throw JobFailure({FailureKind::kLostConnection, ranks_[0], hosts_[0], text, wall_clock(), "", own}, false);
}

}  // namespace sirtaki
