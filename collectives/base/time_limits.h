// All time limits of the engine, in one table, because some limits must be longer than others. The checks at the end
// keep that order.
#pragma once

#include <chrono>

namespace sirtaki {

// ---- Defaults of settings (base/settings.h) ----

// All ranks must have called init() within this time: SIRTAKI_START_TIMEOUT.
inline constexpr std::chrono::seconds kStartTimeout{120};
// A connection between ranks whose other end does not answer for this long is broken: SIRTAKI_GLOO_TIMEOUT_SECONDS.
inline constexpr std::chrono::seconds kSilence{30};
// A missing rank is reported after the first time, and ends the job after the second.
inline constexpr std::chrono::seconds kStallWarning{60};
inline constexpr std::chrono::seconds kStallAbort{600};

// ---- Sleep ----

// MPI cannot wake a process. So an idle rank checks for messages (a failure, a request for its status) this often.
inline constexpr std::chrono::seconds kIdleLook{1};
// The same where every other rank wakes this one. It only matters if a wake-up is lost.
inline constexpr std::chrono::seconds kIdleSleep{60};
// The longest nap while a collective runs: where MPI cannot wake this rank, and where the other ranks wake it.
inline constexpr std::chrono::milliseconds kLongestNap{1};
inline constexpr std::chrono::milliseconds kLongestNapIfWoken{20};
// A waiting thread does the engine's work for this long before it checks for signals; a thread that may not wait, for
// the second time.
inline constexpr std::chrono::milliseconds kHelp{100};
inline constexpr std::chrono::microseconds kShortHelp{100};
// Where the engine's thread has no core of its own, it collects the program's asynchronous calls for this long.
inline constexpr std::chrono::microseconds kGather{500};
// A waiting rank checks this often that the other ranks are alive.
inline constexpr std::chrono::milliseconds kLivenessLook{250};

// ---- Status reports: each limit contains the one before ----

// For the stacks of Python's threads.
inline constexpr std::chrono::milliseconds kStacksOfInterpreter{1500};
// For this rank's own report.
inline constexpr std::chrono::milliseconds kOwnReport{2500};
// For the reports of late ranks, which the coordinator collects before it ends a job that has stalled.
inline constexpr std::chrono::seconds kReportsOfLateRanks{3};
// For the reports of all ranks, which the coordinator collects for the job's status.
inline constexpr std::chrono::seconds kReportsOfAllRanks{4};
// For the job's status, requested by a thread of any process.
inline constexpr std::chrono::seconds kJobStatus{7};

// ---- Failure ----

// The threads of a killed process end one after another. MPI may report the loss before the engine's thread has ended.
inline constexpr std::chrono::milliseconds kProcessDeath{200};
// A rank that waits for a dead one gives a launcher this time to report why it has died.
inline constexpr std::chrono::seconds kReportByLauncher{1};
// The ranks agree on one cause. Then the last messages are sent, within the same limit.
inline constexpr std::chrono::seconds kAgreementOnFailure{2};
// A thread that reports a failure waits this long for the agreement.
inline constexpr std::chrono::milliseconds kWaitForAgreement{2500};
// A rank that has left waits this long for the ranks at the other ends of its connections to leave, too.
inline constexpr std::chrono::seconds kLeaveTogether{1};
// The process ends after this time even if a library blocks the engine's thread.
inline constexpr std::chrono::seconds kForcedExit{5};

static_assert(kSilence < kStallWarning, "a host that is cut off is named as lost, not as late");
static_assert(kStallWarning < kStallAbort && kStallWarning < kStartTimeout);
static_assert(kLongestNap < kLongestNapIfWoken && kLongestNapIfWoken < kLivenessLook && kIdleLook < kIdleSleep);
static_assert(kShortHelp < kHelp && kHelp < kLivenessLook, "a rank that helps still checks the others in time");
static_assert(kStacksOfInterpreter < kOwnReport, "the report arrives even if the interpreter does not answer");
static_assert(kIdleLook + kStacksOfInterpreter < kReportsOfLateRanks, "an idle rank on another host answers in time");
static_assert(kIdleLook + kStacksOfInterpreter < kReportsOfAllRanks, "an idle rank on another host answers in time");
static_assert(kIdleLook + kReportsOfAllRanks + kIdleLook < kJobStatus, "the request and the answer need time, too");
static_assert(kAgreementOnFailure < kWaitForAgreement, "the waiting thread gets the agreed cause");
static_assert(2 * kAgreementOnFailure < kForcedExit, "the engine's thread ends the job itself if it can");

}  // namespace sirtaki
