/* The engine of this process for compiled kernels of frameworks that are built apart from sirtaki._core: a table of C
 * functions, whose address `sirtaki._core.c_api()` gives. Plain C, so that neither side sees the other's C++ library.
 */
#pragma once

#include <stdint.h>

/* Goes up whenever a struct below changes its meaning; a kernel library refuses a table of another version. */
enum { kSirtakiApiVersion = 1 };

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
  kSirtakiQuestionCount = 6,
};

/* What the thread in submit() may spend on the request. */
enum SirtakiPatience {
  kSirtakiReturn = 0,  /* nothing */
  kSirtakiAdvance = 1, /* a moment of the engine's work, if the engine sleeps: a small collective may end in it */
  kSirtakiWait = 2,    /* submit() returns when the request has ended */
};

/* How a request ended; valid during the call that passes it. */
struct SirtakiOutcome {
  int32_t error;
  const char* message;            /* what went wrong, "" if nothing */
  int64_t value;                  /* join: the last rank; a question: its answer */
  const int64_t* received_splits; /* alltoall: the rows that came from each rank */
  int32_t received_split_count;
  int32_t abandoned; /* the request's memory may still be written to, so never free it */
};

struct SirtakiTensor {
  const void* in;
  void* out;      /* null: `allocate` gives the memory once the size is known */
  int32_t dtype;  /* the core's number, as in sirtaki._core.DTYPES */
  int32_t device; /* -1: host memory; else the number of the GPU, on which the collective comes after everything that
                     was queued before submit(), and before everything that is queued after `finished` */
  int32_t dimensions;
  const int64_t* shape;
};

/* Read during submit() only, but for the memory of the tensors and the context. */
struct SirtakiRequest {
  int32_t verb;     /* the core's number, as in sirtaki._core.VERBS */
  const char* name; /* "": numbered by the core */
  int32_t op;
  double prescale;
  double postscale;
  int32_t root;
  int32_t process_set;
  const struct SirtakiTensor* tensors;
  int32_t tensor_count;
  const int64_t* splits;
  int32_t split_count;
  const char* site;
  int32_t patience;
  void* context; /* given back to both functions */
  /* Memory for output `tensor` of this shape; any thread. */
  void* (*allocate)(void* context, int32_t tensor, int32_t dimensions, const int64_t* shape);
  /* Called exactly once, on any thread, also from within submit() if the request is refused. */
  void (*finished)(void* context, const struct SirtakiOutcome* outcome);
};

struct SirtakiApi {
  uint32_t version;
  void (*submit)(const struct SirtakiRequest* request);
  /* Answers before it returns. */
  void (*ask)(int32_t question, int32_t process_set, void* context,
              void (*answer)(void* context, const struct SirtakiOutcome* outcome));
};
