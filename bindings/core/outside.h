// Hears what reaches this process from outside the job's own transport: SIGUSR1, which asks how the job stands, and the
// launcher, which asks how this rank stands and tells why the job ends. Its thread sleeps until something comes, and
// needs neither the interpreter nor the engine's thread.
#pragma once

#include <memory>
#include <thread>

#include "engine/engine.h"

namespace sirtaki {

// Has the program no handler of its own for SIGUSR1? Then there is one as long as an Outside lives.
bool usr1_is_free();

class Outside {
 public:
  // line: a descriptor that stays the caller's, -1 for none (frameworks/sirtaki/supervision.py). takes_usr1: what
  // usr1_is_free() said before MPI was there.
  Outside(std::shared_ptr<Engine> engine, int line, bool takes_usr1);
  // A program that has put a handler of its own over ours keeps it.
  ~Outside();

 private:
  void run();
  bool on_line();
  void on_signal();

  std::shared_ptr<Engine> engine_;
  int line_;
  std::thread thread_;
};

}  // namespace sirtaki
