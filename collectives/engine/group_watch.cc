// What a group does while nothing moves, so that every wait comes to an end: the coordinator is told what stands still
// on each rank, the stall watch looks at that, and a rank that waits looks whether the coordinator still lives.
#include <limits>

#include "base/error.h"
#include "engine/group.h"

namespace sirtaki {
namespace {

constexpr std::chrono::milliseconds kLookInterval{250};
// So long something may stand still before the coordinator is told.
constexpr std::chrono::seconds kTellAfter{1};
// Whoever waits looks more often than that, unless its process was stopped.
constexpr std::chrono::seconds kLookGap{2};

std::chrono::duration<double> seconds(double count) { return std::chrono::duration<double>(count); }

// A rank that is late in one process set may be held up in another. What all ranks take part in is told first.
constexpr double kPrecedenceSeconds = 2;

// For how long a coordinator may be silent before it is asked for a sign of life; none: for ever.
std::chrono::duration<double> ask_after(const Settings& settings) {
  double after = std::numeric_limits<double>::infinity();
  if (settings.stall_warning_seconds > 0) after = settings.stall_warning_seconds;
  if (settings.stall_abort_seconds > 0) after = std::min(after, settings.stall_abort_seconds / 2);
  return seconds(after);
}

}  // namespace

StallWatch Group::make_watch(const GroupOptions& options) {
  Settings settings = options.settings;
  if (options.id != 0 && settings.stall_abort_seconds > 0) settings.stall_abort_seconds += kPrecedenceSeconds;
  return {options.ranks, options.hosts, settings};
}

void Group::watch() {
  const auto now = Clock::now();
  const bool resumed = watch_->has_warned() && !coordinator_->has_pending();  // the program may soon end
  if (now < next_look_ && !resumed) return;
  next_look_ = now + kLookInterval;
  job_status_->look(*coordinator_, now);
  if (coordinator_->job_status_wanted()) return;  // both ask the ranks
  StallWatch::Report report = watch_->look(*coordinator_, now);
  for (const std::string& line : report.lines) owner_.say(line);
  // Whoever is late because a verdict was lost learns so by the next one.
  if (!report.lines.empty()) coordinator_->send_heartbeat();
  if (!report.ask.empty()) coordinator_->ask(report.ask);
  if (!report.abort_cause.empty()) {
    const auto missing = static_cast<std::size_t>(report.missing);
    coordinator_->fail({FailureKind::kPassedLimit, options_.ranks[missing], options_.hosts[missing], report.abort_cause,
                        wall_clock(), report.site, options_.ranks[0]});
  }
}

void Group::look(Clock::time_point now) {
  report_standing(now);
  if (!coordinator_) listen_for_coordinator(now);
}

// The coordinator sees votes only; what stands still in a plan or on the planes it has to be told.
void Group::report_standing(Clock::time_point now) {
  if (std::exchange(moves_looked_at_, moves_) != moves_) still_since_ = now;
  std::vector<StandingWait> waits;
  if (plan_ && plan_->holds_anything() && plan_->idle(now) > kTellAfter) waits = plan_->waits();
  if (now - still_since_ > kTellAfter) {
    for (const Executor* executor : {&executor_, &lane_}) {
      const std::vector<StandingWait> running = executor->running();
      waits.insert(waits.end(), running.begin(), running.end());
    }
  }
  if (waits == reported_) return;
  announcement_.standing = waits;
  reported_ = std::move(waits);
}

// A coordinator that lives answers at once, whatever its program does; one that was stopped, or whose messages are
// lost, cannot tell of the stall that follows.
void Group::listen_for_coordinator(Clock::time_point now) {
  const bool waits = !in_flight_.empty() || !joins_.empty() || meeting() || moving_data() || (leaving_ && !all_left_);
  const bool heard = std::exchange(heard_looked_at_, heard_) != heard_;
  const bool looked = now - std::exchange(last_look_, now) < kLookGap;
  if (!waits || heard || !looked) {
    silent_since_ = now;
    asked_ = false;
    return;
  }
  const auto silence = now - silent_since_;
  if (!asked_ && silence > ask_after(options_.settings)) announcement_.wants_heartbeat = asked_ = true;
  if (!asked_ || options_.settings.stall_abort_seconds <= 0) return;
  if (silence < seconds(options_.settings.stall_abort_seconds + (options_.id == 0 ? 0 : kPrecedenceSeconds))) return;
  const int own = options_.ranks[static_cast<std::size_t>(transport_->rank())];
  const std::string text =
      "rank " + std::to_string(options_.ranks[0]) + " (" + options_.hosts[0] +
      "), which coordinates, has not answered rank " + std::to_string(own) + " for " +
      std::to_string(static_cast<long>(std::chrono::duration<double>(silence).count() + 0.5)) +
      " s (SIRTAKI_STALL_SHUTDOWN_TIME_SECONDS, 0 = never): it is dead or stopped, or what it sent was lost.";
  throw JobFailure({FailureKind::kLostConnection, options_.ranks[0], options_.hosts[0], text, wall_clock(), "", own},
                   false);
}

}  // namespace sirtaki
