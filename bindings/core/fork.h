// A process that a rank forks, as a data loader does for its workers, has none of the engine's threads, and finds
// mutexes as they were at that moment.
#pragma once

namespace sirtaki {

// From now on forks are noticed; may be called again.
void watch_forks();

// Was this process forked by one that watches? It may ask who its parent is, but do nothing together with other ranks.
bool is_forked_child();

// Throws Error(kPrecondition), which says what to do, if it was.
void refuse_forked_child();

}  // namespace sirtaki
