// Hears what reaches this process from outside the job's own transport: SIGUSR1, which asks how the job stands, and the
// launcher, which asks how this rank stands and tells why the job ends. Its thread sleeps until something comes, and
// needs neither the interpreter nor the engine's thread.
#pragma once

#include <memory>
#include <thread>

#include "engine/engine.h"

namespace sirtaki {

// Whether the program has no handler of its own for this signal. SIGUSR1 then gets one as long as an Outside lives.
bool signal_is_free(int number);

class Outside {
 public:
  // line: a descriptor that stays the caller's, -1 for none (frameworks/sirtaki/supervision.py). takes_usr1: what
  // signal_is_free(SIGUSR1) said before MPI was there.
  Outside(std::shared_ptr<Engine> engine, int line, bool takes_usr1);
  // A program that has put a handler of its own over ours keeps it.
  ~Outside();

 private:
  void run();
  bool on_line();
  void on_signal();
  void pass_on(int number);

  std::shared_ptr<Engine> engine_;
  int line_;
  bool takes_usr1_;
  std::thread thread_;
};

}  // namespace sirtaki
