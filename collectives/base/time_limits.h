// How long the engine waits for what. One table, since one limit often has to be longer than another: the checks at the
// end keep that order.
#pragma once

#include <chrono>

namespace sirtaki {

// ---- Sleeping ----

// MPI cannot wake a process. So a rank at rest looks this often for a message: that the job has failed, or a question.
inline constexpr std::chrono::seconds kIdleLook{1};
// Where every other rank wakes this one. Only a second line of defence.
inline constexpr std::chrono::seconds kIdleSleep{60};
// Of naps while something is under way: where MPI cannot wake this rank, and where the others do.
inline constexpr std::chrono::milliseconds kLongestNap{1};
inline constexpr std::chrono::milliseconds kLongestNapIfWoken{20};
// How long a waiting thread does the engine's work before it looks for signals, and one that may not wait.
inline constexpr std::chrono::milliseconds kHelp{100};
inline constexpr std::chrono::microseconds kShortHelp{100};
// How often a waiting rank looks whether the others still live.
inline constexpr std::chrono::milliseconds kLivenessLook{250};

// ---- Status reports: each asks the one before ----

// Python's threads answer with their stacks.
inline constexpr std::chrono::milliseconds kStacksOfInterpreter{1500};
// A thread of this process gets this rank's report.
inline constexpr std::chrono::milliseconds kOwnReport{2500};
// The coordinator gets the reports of late ranks before it ends a job that stands still.
inline constexpr std::chrono::seconds kReportsOfLateRanks{3};
// The coordinator gets the reports of all ranks for the job's status.
inline constexpr std::chrono::seconds kReportsOfAllRanks{4};
// A thread of any process gets the job's status.
inline constexpr std::chrono::seconds kJobStatus{7};

// ---- Failure ----

// The threads of a killed process end one after another. MPI may miss one before the engine's thread has ended.
inline constexpr std::chrono::milliseconds kProcessDeath{200};
// The ranks agree on one cause; then the last messages leave. Each may take so long.
inline constexpr std::chrono::seconds kAgreementOnFailure{2};
// A thread that reports a failure waits for the agreement.
inline constexpr std::chrono::milliseconds kWaitForAgreement{2500};
// The process ends even though its engine's thread is held up inside a library.
inline constexpr std::chrono::seconds kForcedExit{5};

static_assert(kLongestNap < kLongestNapIfWoken && kLongestNapIfWoken < kLivenessLook && kIdleLook < kIdleSleep);
static_assert(kShortHelp < kHelp && kHelp < kLivenessLook, "a rank that helps looks after the others in time, too");
static_assert(kStacksOfInterpreter < kOwnReport, "a report comes although the interpreter does not answer");
static_assert(kIdleLook + kStacksOfInterpreter < kReportsOfLateRanks, "an idle rank between hosts answers in time");
static_assert(kIdleLook + kStacksOfInterpreter < kReportsOfAllRanks, "an idle rank between hosts answers in time");
static_assert(kIdleLook + kReportsOfAllRanks + kIdleLook < kJobStatus, "the question and the answer travel as well");
static_assert(kAgreementOnFailure < kWaitForAgreement, "the waiting thread learns the agreed cause");
static_assert(2 * kAgreementOnFailure < kForcedExit, "the engine's thread ends the job itself where it can");

}  // namespace sirtaki
