// Is what came from another rank something that a rank in its senses may have sent? What decodes need not make sense;
// what is acted on must, whatever has happened to the one that sent it.
#pragma once

#include "agreement/messages.h"

namespace sirtaki {

// For a group of `size` ranks. Throw Error(kAborted).
void check_vote(const Vote& vote, int size);
void check_verdict(const Verdict& verdict, int size);

}  // namespace sirtaki
