// Checks votes and verdicts from other ranks before this rank acts on them. A damaged message can decode without an
// error and still hold impossible values.
#pragma once

#include "agreement/messages.h"

namespace sirtaki {

// For a group of `size` ranks. Throw Error(kAborted).
void check_vote(const Vote& vote, int size);
void check_standing(const StandingWait& wait, int size);
void check_verdict(const Verdict& verdict, int size);

}  // namespace sirtaki
