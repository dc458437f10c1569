#include "c_api.h"

#include <algorithm>
#include <utility>

#include "bindings.h"
#include "process.h"

namespace sirtaki {
namespace {

namespace py = pybind11;

// The core's numbers are those of the header.
static_assert(static_cast<int>(Verb::kJoin) == kSirtakiJoin && static_cast<int>(Verb::kAlltoall) == kSirtakiAlltoall);
static_assert(static_cast<int>(Verb::kReceive) == kSirtakiReceive && kVerbCount == kSirtakiReceive + 1);
static_assert(static_cast<int>(ReduceOp::kProduct) == kSirtakiProduct && kReduceOpCount == kSirtakiProduct + 1);
static_assert(static_cast<int>(DType::kFloat64) == kSirtakiFloat64 && kDTypeCount == kSirtakiFloat64 + 1);

SirtakiError number_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument:
      return kSirtakiInvalidArgument;
    case ErrorKind::kPrecondition:
      return kSirtakiPrecondition;
    case ErrorKind::kAborted:
      break;
  }
  return kSirtakiAborted;
}

template <class Callback>
void tell_failure(Callback callback, void* context, SirtakiError kind, const char* message, bool abandoned = false) {
  const SirtakiOutcome outcome{kind, message, 0, nullptr, 0, abandoned ? 1 : 0};
  callback(context, &outcome);
}

// Runs `work` and turns its exceptions into outcomes: no exception may reach C code.
template <class Callback, class Work>
void guarded(Callback callback, void* context, const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    tell_failure(callback, context, number_of(error.kind()), error.what());
  } catch (const std::exception& error) {
    tell_failure(callback, context, kSirtakiAborted, error.what());
  }
}

RequestBuilder builder_of(const SirtakiRequest& asked) {
  RequestBuilder builder(asked.verb, asked.name, asked.op, asked.prescale, asked.postscale, asked.site, asked.root,
                         {asked.splits, asked.splits + asked.split_count});
  builder.request.tag = asked.tag;
  const bool has_rooms = changes_shape(builder.request.verb);
  for (int i = 0; i < asked.tensor_count; ++i) {
    const SirtakiTensor& tensor = asked.tensors[i];
    builder.add(tensor.dtype, tensor.device, Shape(tensor.shape, tensor.shape + tensor.dimensions),
                {tensor.in, tensor.out, has_rooms ? tensor.out_bytes : Address::kFits});
  }
  return builder;
}

void tell_result(const SirtakiRequest& asked, Work& work) {
  try {
    const Result& result = work.result();
    if (result.output_ready != nullptr) result.output_ready->block_all_streams();
    if (!result.misfit.empty()) throw Error(ErrorKind::kInvalidArgument, result.misfit);
    const auto splits = static_cast<std::int32_t>(result.received_splits.size());
    const SirtakiOutcome outcome{kSirtakiOk, "", result.value, result.received_splits.data(), splits, 0};
    asked.finished(asked.context, &outcome);
  } catch (const Error& error) {
    tell_failure(asked.finished, asked.context, number_of(error.kind()), error.what(), work.abandoned());
  }
}

void wait_for(Engine& engine, Work& work) {
  try {
    bool help = true;
    while (!engine.wait(work, std::exchange(help, false))) {
    }
  } catch (const Error&) {
    engine.wake();  // an engine callback, which must not wait; `finished` is called later
  }
}

// On a GPU, work that the framework queued before may still use the memory that it gives now.
Allocate allocation_by(const SirtakiRequest& asked, int device) {
  return [allocate = asked.allocate, context = asked.context, device](std::size_t tensor, const Shape& shape,
                                                                      Stream stream) {
    void* const memory =
        allocate(context, static_cast<std::int32_t>(tensor), static_cast<std::int32_t>(shape.size()), shape.data());
    if (device == kHostDevice) return memory;
    if (memory == nullptr && element_count(shape) > 0) {
      throw Error(ErrorKind::kAborted, name_of_device(device) + " has no memory for a result");
    }
    gpu(device).record_all()->block_stream(stream);
    return memory;
  };
}

void submit_asked(const SirtakiRequest* asked) {
  std::shared_ptr<Engine> engine;
  std::shared_ptr<Work> work;
  const auto start = [&] {
    engine = engine_for_collective();
    RequestBuilder builder = builder_of(*asked);
    const int device = builder.device();
    EventPtr ready = device == kHostDevice ? nullptr : gpu(device).record_all();
    // Each branch below makes sure that the engine notices the request.
    work = engine->queue().put(asked->process_set, builder.submission(allocation_by(*asked, device), std::move(ready)),
                               WakeUp::kByCaller);
  };
  guarded(asked->finished, asked->context, start);
  if (work == nullptr) return;
  // Later only the request's functions and context are used; the caller may reuse the rest.
  const int patience = asked->patience;
  engine->follow(*work, [kept = *asked](Work& done) { tell_result(kept, done); });
  if (patience == kSirtakiWait) {
    wait_for(*engine, *work);
  } else if (patience == kSirtakiAdvance) {
    engine->poll(*work);
  } else {
    engine->wake();
  }
}

std::int64_t answer_to(SirtakiQuestion question, int process_set) {
  const auto engine = engine_for_collective();
  const Topology& topology = engine->topology();
  if (question == kSirtakiRank) return topology.rank;
  if (question == kSirtakiLocalRank) return topology.local_rank;
  if (question == kSirtakiLocalSize) return topology.local_size;
  if (question == kSirtakiEndStep) return end_step(*engine), 0;
  const auto sets = engine->process_sets();
  const auto set = sets.find(process_set);
  if (set == sets.end()) {
    throw Error(ErrorKind::kInvalidArgument, "there is no process set " + std::to_string(process_set));
  }
  const std::vector<int>& ranks = set->second;
  if (question == kSirtakiSize) return static_cast<std::int64_t>(ranks.size());
  const auto found = std::find(ranks.begin(), ranks.end(), topology.rank);
  if (question == kSirtakiIncluded) return found != ranks.end();
  if (found == ranks.end()) {
    throw Error(ErrorKind::kInvalidArgument,
                "rank " + std::to_string(topology.rank) + " is not in process set " + std::to_string(process_set));
  }
  return found - ranks.begin();
}

void ask(std::int32_t question, std::int32_t process_set, void* context,
         void (*answer)(void* context, const SirtakiOutcome* outcome)) {
  guarded(answer, context, [&] {
    const auto value = answer_to(to_enum<SirtakiQuestion>(question, kSirtakiQuestionCount, "question"), process_set);
    const SirtakiOutcome outcome{kSirtakiOk, "", value, nullptr, 0, 0};
    answer(context, &outcome);
  });
}

constexpr SirtakiApi kApi{kSirtakiApiVersion, &submit_asked, &ask};

}  // namespace

void bind_c_api(py::module_& module) {
  module.def("c_api", [] { return reinterpret_cast<std::uintptr_t>(&kApi); });
}

}  // namespace sirtaki
