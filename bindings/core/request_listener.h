// Receives requests from outside the job's transport: SIGUSR1, which asks for the job status; and the launcher, which
// asks for this rank's status or numbers, and sends the failure cause and notices for the program. Its thread sleeps
// until a request arrives. It needs neither the interpreter nor the engine's thread.
#pragma once

#include <memory>
#include <thread>

#include "engine/engine.h"

namespace sirtaki {

// Whether the program has no handler for this signal. If SIGUSR1 is free, an RequestListener handles it during its
// life.
bool signal_is_free(int number);

class RequestListener {
 public:
  // launcher: a descriptor owned by the caller, -1 for none (frameworks/sirtaki/job/rank/supervisor_link.py).
  // takes_usr1: the result of signal_is_free(SIGUSR1) before MPI was initialised.
  RequestListener(std::shared_ptr<Engine> engine, int launcher, bool takes_usr1);
  // If the program has replaced our handler by its own, that one stays.
  ~RequestListener();

 private:
  void run();
  bool on_launcher();
  void on_signal();
  void pass_on(int number);

  std::shared_ptr<Engine> engine_;
  int launcher_;
  bool takes_usr1_;
  std::thread thread_;
};

}  // namespace sirtaki
