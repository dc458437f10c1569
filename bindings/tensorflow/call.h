// One run of an asynchronous kernel. It submits one request with the op's inputs to the engine and returns at once.
// When the request is done, the engine ends the op. No thread of TensorFlow waits.
#pragma once

#include <cstdint>
#include <string>

#include "api.h"
#include "c_api.h"

namespace sirtaki::tensorflow {

// An op's verb and attributes; one object for each node of a graph.
struct Kernel {
  SirtakiVerb verb = kSirtakiAllreduce;
  const char* prefix = "";  // prefix of the request's name
  std::int64_t reduce_op = 1;
  double prescale = 1.0;
  double postscale = 1.0;
  std::int64_t root = -1;
  std::int64_t process_set = 0;
  std::int64_t question = 0;
  bool on_gpu = false;
  bool eager = false;  // the computing thread only waits for this op
  std::string site;
};

// The function table of sirtaki._core; null until connected.
const SirtakiApi* core_table();
void connect_core(const SirtakiApi* table);

// Calls `done` once when it has ended, on any thread.
void start_call(const Kernel& kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done);

// Makes the op raise the outcome's error.
void fail(TF_OpKernelContext* context, const SirtakiOutcome& outcome);
void fail_unconnected(TF_OpKernelContext* context);

}  // namespace sirtaki::tensorflow
