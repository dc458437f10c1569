// One run of an asynchronous kernel: turns the op's inputs into one request to the engine and returns at once; the
// engine's completion ends the op. No thread of TensorFlow's waits.
#pragma once

#include <cstdint>
#include <string>

#include "api.h"
#include "c_api.h"

namespace sirtaki::tensorflow {

// The core's numbers, which are part of its interface and never change (collectives/types.h).
enum class CoreVerb : std::int32_t { kAllreduce, kAllgather, kBroadcast, kAlltoall, kReducescatter, kBarrier, kJoin };

// What an op is and what its attributes say; one for each node of a graph.
struct Kernel {
  CoreVerb verb = CoreVerb::kAllreduce;
  const char* prefix = "";  // of the request's name
  std::int64_t reduce_op = 1;
  double prescale = 1.0;
  double postscale = 1.0;
  std::int64_t root = -1;
  std::int64_t process_set = 0;
  std::int64_t question = 0;
  bool on_gpu = false;
  bool eager = false;  // the thread that computes has nothing else to do than to wait for this op
  std::string site;
};

// The table of sirtaki._core; null until connected.
const SirtakiApi* core_table();
void connect_core(const SirtakiApi* table);

// Ends by calling `done` once, on any thread.
void start_call(const Kernel& kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done);

// Makes the op raise the outcome's error.
void fail(TF_OpKernelContext* context, const SirtakiOutcome& outcome);
void fail_unconnected(TF_OpKernelContext* context);

}  // namespace sirtaki::tensorflow
