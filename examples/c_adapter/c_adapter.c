/* An adapter in C for a framework that has compiled operations: it sums floats over all ranks, and sends them.
 *
 *   cc -shared -fPIC -I$(python -c 'import sirtaki; print(sirtaki.get_include())') c_adapter.c -o libc_adapter.so
 *   sirtakirun -np 2 python c_adapter.py ./libc_adapter.so
 *
 * It links nothing of Sirtaki: Python hands it the table of functions, sirtaki.c_api().
 */
#include <errno.h>
#include <semaphore.h>
#include <sirtaki/c_api.h>
#include <stdio.h>
#include <stdlib.h>

struct Call {
  int32_t error;
  int abandoned; /* the engine may still write into the tensor's memory, so nobody may free it */
  char message[512];
  sem_t ended;
};

/* The engine calls this once, on any thread. The outcome is valid only until it returns. */
static void finish(void* context, const struct SirtakiOutcome* outcome) {
  struct Call* call = context;
  call->error = outcome->error;
  call->abandoned = outcome->abandoned != 0;
  snprintf(call->message, sizeof call->message, "%s", outcome->message);
  sem_post(&call->ended);
}

/* Runs one request and waits for its end. Returns 0, or an error's number and its message. `peer`, `tag`: of a send or a
 * receive.
 */
static int run(const struct SirtakiApi* api, int32_t verb, const char* name, float* data, int64_t count, int peer,
               int tag, char* message, int capacity) {
  if (api->version != kSirtakiApiVersion) {
    snprintf(message, capacity, "built for version %d of the interface, got %u", kSirtakiApiVersion, api->version);
    return kSirtakiInvalidArgument;
  }
  struct SirtakiTensor tensor = {.in = data,
                                 .out = data,
                                 .dtype = kSirtakiFloat32,
                                 .device = -1,
                                 .dimensions = 1,
                                 .shape = &count,
                                 .out_bytes = -1};
  struct Call call = {0};
  sem_init(&call.ended, 0, 0);
  struct SirtakiRequest request = {.verb = verb,
                                   .name = name,
                                   .op = kSirtakiSum,
                                   .prescale = 1.0,
                                   .postscale = 1.0,
                                   .root = peer,
                                   .tag = tag,
                                   .tensors = &tensor,
                                   .tensor_count = 1,
                                   .site = "c_adapter.c",
                                   .patience = kSirtakiWait,
                                   .context = &call,
                                   .finished = finish};
  api->submit(&request);
  /* `finish` may still be under way when submit() returns. A signal's handler may interrupt the wait. */
  while (sem_wait(&call.ended) != 0 && errno == EINTR) {
  }
  sem_destroy(&call.ended);
  snprintf(message, capacity, "%s", call.message);
  if (call.abandoned) {
    fprintf(stderr, "%s\n", message); /* the caller would free `data` */
    abort();
  }
  return call.error;
}

/* Replaces `count` floats by their sums over the ranks of the job. All ranks must call it with the same name and count.
 */
int sum_floats(const struct SirtakiApi* api, const char* name, float* data, int64_t count, char* message,
               int capacity) {
  return run(api, kSirtakiAllreduce, name, data, count, 0, 0, message, capacity);
}

/* Sends `count` floats to rank `peer`, which receives as many with the same tag. No other rank takes part. */
int send_floats(const struct SirtakiApi* api, float* data, int64_t count, int peer, int tag, char* message,
                int capacity) {
  return run(api, kSirtakiSend, "", data, count, peer, tag, message, capacity);
}

int receive_floats(const struct SirtakiApi* api, float* data, int64_t count, int peer, int tag, char* message,
                   int capacity) {
  return run(api, kSirtakiReceive, "", data, count, peer, tag, message, capacity);
}
