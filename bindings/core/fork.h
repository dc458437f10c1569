// Detects processes that a rank has forked, such as a data loader's workers. They have none of the engine's threads,
// and mutexes stay in their state at the fork.
#pragma once

namespace sirtaki {

// Detects forks from now on. May be called again.
void watch_forks();

// True in a process forked after watch_forks(). It may query rank and size, but take part in no collective.
bool is_forked_child();

// Throws Error(kPrecondition) with advice in a forked child.
void refuse_forked_child();

}  // namespace sirtaki
