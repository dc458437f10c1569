/* A table of C functions through which compiled kernels of frameworks use the engine of this process. The kernels are
 * built apart from Sirtaki: `sirtaki.get_include()` is the folder for the compiler, `sirtaki.c_api()` the table's
 * address. Plain C, so that the two sides may use different C++ libraries. examples/c_adapter shows a use.
 */
#pragma once

#include <stdint.h>

/* Increased at each change of a struct below. A kernel library refuses a table of another version. */
enum { kSirtakiApiVersion = 3 };

/* These numbers never change.
 * gather: an alltoall in which each rank gives all rows to the root. scatter: an alltoall in which only the root gives
 * rows. reduce: an allreduce whose result only the root uses.
 */
enum SirtakiVerb {
  kSirtakiAllreduce = 0,
  kSirtakiAllgather = 1,
  kSirtakiBroadcast = 2,
  kSirtakiAlltoall = 3,
  kSirtakiReducescatter = 4,
  kSirtakiBarrier = 5,
  kSirtakiJoin = 6,
  kSirtakiSend = 9,     /* to rank `root` of the job, with a tag; done once that rank has received it */
  kSirtakiReceive = 10, /* from rank `root`: into `out`, of the same dtype and number of elements as sent */
};

enum SirtakiReduceOp {
  kSirtakiAverage = 0,
  kSirtakiSum = 1,
  kSirtakiAdasum = 2,
  kSirtakiMin = 3,
  kSirtakiMax = 4,
  kSirtakiProduct = 5,
};

enum SirtakiDType {
  kSirtakiBool = 0,
  kSirtakiUint8 = 1,
  kSirtakiInt8 = 2,
  kSirtakiUint16 = 3,
  kSirtakiInt16 = 4,
  kSirtakiUint32 = 5,
  kSirtakiInt32 = 6,
  kSirtakiUint64 = 7,
  kSirtakiInt64 = 8,
  kSirtakiFloat16 = 9,
  kSirtakiBfloat16 = 10,
  kSirtakiFloat32 = 11,
  kSirtakiFloat64 = 12,
};

enum SirtakiError {
  kSirtakiOk = 0,
  kSirtakiInvalidArgument = 1, /* the call itself is wrong */
  kSirtakiPrecondition = 2,    /* ranks disagree, or there is no engine */
  kSirtakiAborted = 3, /* the job has failed; memory of this request may still be written to, so never free it */
};

enum SirtakiQuestion {
  kSirtakiRank = 0,
  kSirtakiSize = 1, /* of the process set */
  kSirtakiLocalRank = 2,
  kSirtakiLocalSize = 3,
  kSirtakiIncluded = 4,  /* 1 if this rank belongs to the process set */
  kSirtakiRankInSet = 5, /* an error if it does not belong */
  kSirtakiEndStep = 6,   /* announces that all gradients of a step are reduced; answers 0 */
  kSirtakiQuestionCount = 7,
};

/* How long the thread in submit() may stay for the request. */
enum SirtakiPatience {
  kSirtakiReturn = 0,  /* not at all */
  kSirtakiAdvance = 1, /* one round of engine work, if the engine sleeps; a small collective may end in it */
  kSirtakiWait = 2,    /* until the request has ended */
};

/* How a request ended; valid only during the callback that gets it. */
struct SirtakiOutcome {
  int32_t error;
  const char* message;            /* the error's message, "" without an error */
  int64_t value;                  /* join: the rank that joined last; question: its answer */
  const int64_t* received_splits; /* alltoall: number of rows from each rank */
  int32_t received_split_count;
  int32_t abandoned; /* the request's memory may still be written to, so never free it */
};

struct SirtakiTensor {
  const void* in;
  void* out;      /* null: `allocate` is called once the size is known */
  int32_t dtype;  /* enum SirtakiDType */
  int32_t device; /* -1: host memory; else the GPU's number. There the collective runs after all work queued before
                     submit(), and before all work queued after `finished` */
  int32_t dimensions;
  const int64_t* shape;
  int64_t out_bytes; /* of allgather, alltoall, reducescatter: the size of `out`, if it is not null; -1: as large as the
                        result. Only the ranks together know the result's size. If it differs, the request ends in
                        kSirtakiInvalidArgument on this rank, `out` is not written, and other ranks do not notice. */
};

/* Read during submit() only, except the tensors' memory and the context. */
struct SirtakiRequest {
  int32_t verb;     /* enum SirtakiVerb */
  const char* name; /* "": numbered by the core */
  int32_t op;       /* enum SirtakiReduceOp */
  double prescale;
  double postscale;
  int32_t root; /* broadcast, send, receive: a rank of the job */
  int32_t tag;  /* send, receive: from 0 */
  int32_t process_set;
  const struct SirtakiTensor* tensors;
  int32_t tensor_count;
  const int64_t* splits;
  int32_t split_count;
  const char* site;
  int32_t patience;
  void* context; /* passed to both functions */
  /* Returns memory for output `tensor` of this shape. Called on any thread. */
  void* (*allocate)(void* context, int32_t tensor, int32_t dimensions, const int64_t* shape);
  /* Called exactly once, on any thread. If the request is refused, submit() itself calls it. */
  void (*finished)(void* context, const struct SirtakiOutcome* outcome);
};

struct SirtakiApi {
  uint32_t version;
  void (*submit)(const struct SirtakiRequest* request);
  /* Calls `answer` before it returns. */
  void (*ask)(int32_t question, int32_t process_set, void* context,
              void (*answer)(void* context, const struct SirtakiOutcome* outcome));
};
