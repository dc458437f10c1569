#include "execution/executor.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "fusion/fusion.h"
#include "math/kernels.h"

namespace sirtaki {
namespace {

Reduction reduction_of(const Request& request, DType dtype, int contributors) {
  const bool averages = request.op == ReduceOp::kAverage;
  return {.dtype = dtype,
          .op = averages ? ReduceOp::kSum : request.op,
          .prescale = request.prescale,
          .postscale = request.postscale,
          .divisor = averages ? contributors : 1};
}

// Rows of each rank. The first `rows % ranks` ranks get one row more.
std::vector<std::int64_t> rows_by_rank(std::int64_t rows, int ranks) {
  std::vector<std::int64_t> result(static_cast<std::size_t>(ranks), rows / ranks);
  for (std::int64_t r = 0; r < rows % ranks; ++r) ++result[static_cast<std::size_t>(r)];
  return result;
}

std::vector<std::int64_t> scaled(std::span<const std::int64_t> rows, std::int64_t row) {
  std::vector<std::int64_t> result(rows.begin(), rows.end());
  for (std::int64_t& count : result) count *= row;
  return result;
}

Shape with_rows(Shape shape, std::int64_t rows) {
  shape[0] = rows;
  return shape;
}

std::int64_t largest_bytes(std::span<const Segment> segments, DType dtype) {
  std::int64_t largest = 0;
  for (const Segment& segment : segments) largest = std::max(largest, segment.count);
  return largest * static_cast<std::int64_t>(size_of(dtype));
}

// How often queued work is checked while nothing else happens.
constexpr std::chrono::milliseconds kLookInterval{500};

// Null for a rank that has joined: it contributes no rows, and is never a root.
const void* input(const BatchItem& item, std::size_t tensor) {
  return item.submission ? item.submission->addresses[tensor].in : nullptr;
}

// Of several events on one stream, only the latest is needed.
void add_event(std::vector<EventPtr>& events, const EventPtr& event) {
  if (event == nullptr) return;
  for (EventPtr& other : events) {
    if (other->stream() != event->stream()) continue;
    if (other->number() < event->number()) other = event;
    return;
  }
  events.push_back(event);
}

}  // namespace

Executor::Executor(int group, int rank, int size, DataPlanes planes, SubmissionOwner& owner, const Observers& observers)
    : group_(group), rank_(rank), size_(size), planes_(std::move(planes)), owner_(owner), observers_(observers) {}

BatchEvent Executor::next_event(const Batch& batch, bool planned) {
  BatchEvent event{.group = group_, .planned = planned, .number = ++number_};
  event.verb = batch.front().agreement->request.verb;
  if (batch.size() == 1 && batch.front().submission) event.only = &batch.front().submission->request;
  for (const BatchItem& item : batch) {
    event.tensors += item.agreement->request.tensors.size();
    event.bytes += static_cast<std::uint64_t>(bytes_of(item.agreement->request));
  }
  return event;
}

void Executor::add(Batch batch, const Arrival& arrival) {
  Entry& entry = batches_.emplace_back(std::move(batch), BatchEvent(), std::nullopt);
  entry.event = next_event(entry.batch, false);
  entry.event.arrival = arrival;
  observers_.announce(&Observer::on_all_arrived, entry.event);
  observers_.announce(&Observer::on_fused, entry.event);
}

void Executor::add(Batch batch, const PlanBarrier& barrier) {
  Entry& entry = batches_.emplace_back(std::move(batch), BatchEvent(), barrier);
  if (entry.batch.empty()) return;
  entry.event = next_event(entry.batch, true);
  observers_.announce(&Observer::on_fused, entry.event);
  entry.barrier->observers = &observers_;
  entry.barrier->batch = &entry.event;
}

bool Executor::at_barrier() const { return busy() && batches_.front().barrier && !batches_.front().barrier->over; }

bool Executor::progress() {
  if (watching_) check_queued_work();
  if (batches_.empty()) return false;
  const bool starts = !running_.has_value();
  if (starts) {
    auto& [batch, event, barrier] = batches_.front();
    if (!batch.empty()) observers_.announce(&Observer::on_started, event);
    results_.clear();
    results_.resize(batch.size());
    running_ = barrier ? run_behind_barrier(batch, *barrier) : run(batch);
    running_->watch(this);
  }
  std::optional<Error> refused;
  try {
    if (!running_->advance()) return running_->took_progress() || starts;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kPrecondition) throw;
    refused = error;
  }
  running_.reset();
  finish_batch(refused ? &*refused : nullptr);
  return true;
}

void Executor::finish_batch(const Error* refused) {
  if (plane_ != nullptr) {
    if (const EventPtr output_ready = plane_->end()) {
      announce_queueing(&Observer::on_queueing_ended);
      for (Result& result : results_) result.output_ready = output_ready;
      watching_ = true;
    }
  }
  if (refused == nullptr) finish_transfer();
  plane_ = nullptr;
  auto [batch, event, barrier] = std::move(batches_.front());
  batches_.pop_front();
  if (batch.empty()) return;
  const bool called_off = barrier && barrier->called_off();
  const BatchOutcome outcome = called_off ? BatchOutcome::kCalledOff : BatchOutcome::kDone;
  observers_.announce(&Observer::on_finished, event, refused == nullptr ? outcome : BatchOutcome::kRefused);
  if (called_off) {
    called_off_ = std::move(batch);
    --number_;
    return;
  }
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (batch[i].submission) owner_.on_finished(group_, *batch[i].submission, std::move(results_[i]), refused);
  }
}

// At a barrier the ranks wait for each other, and not for data.
void Executor::announce_wire(void (Observer::*station)(const BatchEvent&)) const {
  if (!batches_.front().batch.empty() && !at_barrier()) observers_.announce(station, batches_.front().event);
}

void Executor::announce_queueing(void (Observer::*station)(const BatchEvent&, Device&, Stream)) const {
  if (Device* const gpu = plane_->device()) {
    observers_.announce(station, batches_.front().event, *gpu, plane_->stream());
  }
}

void Executor::finish_transfer() {
  if (plane_ != nullptr) observers_.announce(&Observer::on_transferred, batches_.front().event, plane_->carrier());
}

std::vector<StandingWait> Executor::running() const {
  std::vector<StandingWait> result;
  if (batches_.empty()) return result;
  if (at_barrier()) result.push_back({"repeated step", ""});
  for (const BatchItem& item : batches_.front().batch) {
    Request shown;
    shown.name = item.agreement->request.name;
    shown.sequence = item.sequence;
    result.push_back({shown.title(), item.submission ? item.submission->request.site : ""});
  }
  return result;
}

void Executor::for_each(const std::function<void(const Submission&, bool running)>& call) const {
  for (std::size_t i = 0; i < batches_.size(); ++i) {
    for (const BatchItem& item : batches_[i].batch) {
      if (item.submission) call(*item.submission, i == 0 && running_.has_value());
    }
  }
}

void Executor::check_queued_work() {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_look_) return;
  next_look_ = now + kLookInterval;
  watching_ = false;
  for (const auto& plane : planes_) watching_ |= plane->watch();
}

void Executor::abort(const Error& error) {
  if (error.kind() == ErrorKind::kAborted) {
    for (const auto& plane : planes_) plane->abort();
  }
  watching_ = false;
  for (Entry& entry : batches_) {
    for (BatchItem& item : entry.batch) {
      if (item.submission) owner_.on_finished(group_, *item.submission, Result(), &error);
    }
  }
  // A plane's unfinished work may still use memory. So the task is not destroyed, but kept until the process ends.
  if (running_) {
    struct Abandoned {
      Task task;
      std::vector<Result> results;
      std::deque<Entry> batches;
    };
    static_cast<void>(new Abandoned{std::move(*running_), std::move(results_), std::move(batches_)});
  }
  running_.reset();
  batches_.clear();
}

Task Executor::run(Batch& batch) {
  switch (batch.front().agreement->request.verb) {
    case Verb::kAllreduce:
      co_await allreduce(batch);
      break;
    case Verb::kBroadcast:
      co_await broadcast(batch);
      break;
    case Verb::kAllgather:
      for (BatchItem& item : batch) co_await allgather(item);
      break;
    case Verb::kReducescatter:
      for (BatchItem& item : batch) co_await reducescatter(item);
      break;
    case Verb::kAlltoall:
      for (BatchItem& item : batch) co_await alltoall(item);
      break;
    default:  // a barrier is done once it is agreed on; the engine handles the other verbs
      break;
  }
}

DataPlane& Executor::choose_plane(const PlaneQuery& query) {
  DataPlane& chosen = choose(planes_, query);
  finish_transfer();
  plane_ = &chosen;
  if (query.device == kHostDevice) return *plane_;
  plane_->begin(position_of(batches_.front().batch, query.bytes));
  announce_queueing(&Observer::on_queueing_begun);
  return *plane_;
}

StreamPosition Executor::position_of(const Batch& batch, std::int64_t bytes) {
  StreamPosition position{kHostDevice, {}, bytes};
  for (const BatchItem& item : batch) {
    if (!item.submission) continue;
    position.device = item.submission->request.tensors[0].device;
    add_event(position.after, item.submission->ready);
  }
  return position;
}

Result& Executor::result_of(const BatchItem& item) {
  return results_[static_cast<std::size_t>(&item - batches_.front().batch.data())];
}

// The caller's memory, or memory that the caller or the core allocates now. Null on a GPU if this rank has joined.
void* Executor::output(BatchItem& item, std::size_t tensor, Shape shape) {
  const TensorSpec& spec = item.agreement->request.tensors[tensor];
  Result& result = result_of(item);
  result.buffers.resize(item.agreement->request.tensors.size());
  result.shapes.resize(item.agreement->request.tensors.size());
  const std::size_t bytes = static_cast<std::size_t>(element_count(shape)) * size_of(spec.dtype);
  const Address* given = item.submission ? &item.submission->addresses[tensor] : nullptr;
  void* out = nullptr;
  if (given != nullptr && given->has_room_for(bytes)) {
    out = given->out;
  } else if (given != nullptr || spec.device == kHostDevice) {
    if (given != nullptr && given->out != nullptr) result.misfit = given->misfit(bytes, shape);
    if (given != nullptr && item.submission->allocate) {
      out = item.submission->allocate(tensor, shape, plane_ == nullptr ? nullptr : plane_->stream());
    } else {
      result.buffers[tensor] = HostBuffer(bytes);
      out = result.buffers[tensor].data();
    }
  }
  result.shapes[tensor] = std::move(shape);
  return out;
}

// If one plane can do both, the barrier and the allreduce share an exchange.
Task Executor::run_behind_barrier(Batch& batch, PlanBarrier& barrier) {
  plane_ = find(planes_, {Verb::kAllreduce, DType::kUint64, ReduceOp::kMax, kHostDevice, sizeof(PlanBarrier::Words)});
  if (plane_ == nullptr) throw Error(ErrorKind::kAborted, "no plane can run the barriers of a locked plan");
  if (!batch.empty() && batch.front().agreement->request.verb != Verb::kAllreduce) {
    co_await plane_->allreduce_behind_barrier(barrier, {}, {});
    plane_ = nullptr;
    if (!barrier.called_off()) co_await run(batch);
    co_return;
  }
  const Kinds kinds = kinds_of(batch);
  if (kinds.size() == 1) {
    const auto& [kind, segments] = *kinds.begin();
    const Request& request = batch.front().agreement->request;
    const std::int64_t largest = largest_bytes(segments, kind.dtype);
    if (find(planes_, {Verb::kAllreduce, kind.dtype, request.op, kind.device, largest}) == plane_) {
      co_await plane_->allreduce_behind_barrier(barrier, reduction_of(request, kind.dtype, kind.contributors),
                                                segments);
      if (barrier.called_off()) plane_ = nullptr;  // it has carried no tensor
      co_return;
    }
  }
  co_await plane_->allreduce_behind_barrier(barrier, {}, {});
  plane_ = nullptr;
  if (!barrier.called_off()) co_await allreduce(batch.front().agreement->request, kinds);
}

Task Executor::allreduce(Batch& batch) {
  const Kinds kinds = kinds_of(batch);
  co_await allreduce(batch.front().agreement->request, kinds);
}

Executor::Kinds Executor::kinds_of(Batch& batch) {
  Kinds kinds;
  for (BatchItem& item : batch) {
    const Request& request = item.agreement->request;
    for (std::size_t t = 0; t < request.tensors.size(); ++t) {
      const TensorSpec& spec = request.tensors[t];
      Segment segment;
      segment.count = element_count(spec.shape);
      segment.out = output(item, t, spec.shape);
      segment.in = item.submission ? item.submission->addresses[t].in : segment.out;
      if (!item.submission && spec.device == kHostDevice)
        fill_identity(spec.dtype, request.op, segment.out, segment.count);
      kinds[{spec.dtype, spec.device, item.contributors}].push_back(segment);
    }
  }
  return kinds;
}

Task Executor::allreduce(const Request& request, const Kinds& kinds) {
  for (const auto& [kind, segments] : kinds) {
    const Reduction reduction = reduction_of(request, kind.dtype, kind.contributors);
    DataPlane& plane =
        choose_plane({Verb::kAllreduce, kind.dtype, request.op, kind.device, largest_bytes(segments, kind.dtype)});
    co_await plane.allreduce(reduction, segments);
  }
}

Task Executor::broadcast(Batch& batch) {
  const int root = batch.front().agreement->request.root;
  std::map<Kind, std::vector<Segment>> kinds;
  for (BatchItem& item : batch) {
    const Request& request = item.agreement->request;
    for (std::size_t t = 0; t < request.tensors.size(); ++t) {
      const TensorSpec& spec = request.tensors[t];
      Segment segment{input(item, t), output(item, t, spec.shape), element_count(spec.shape)};
      if (rank_ == root && segment.in != segment.out && segment.count > 0 && spec.device == kHostDevice) {
        std::memcpy(segment.out, segment.in, static_cast<std::size_t>(segment.count) * size_of(spec.dtype));
      }
      kinds[{spec.dtype, spec.device, 0}].push_back(segment);
    }
  }
  for (const auto& [kind, segments] : kinds) {
    DataPlane& plane =
        choose_plane({Verb::kBroadcast, kind.dtype, ReduceOp::kSum, kind.device, largest_bytes(segments, kind.dtype)});
    co_await plane.broadcast(root, size_of(kind.dtype), segments);
  }
}

Task Executor::allgather(BatchItem& item) {
  const Request& request = item.agreement->request;
  for (std::size_t t = 0; t < request.tensors.size(); ++t) {
    const TensorSpec& spec = request.tensors[t];
    const auto ranks = static_cast<std::size_t>(size_);
    const auto rows = std::span(item.agreement->sizes).subspan(t * ranks, ranks);
    const std::int64_t total = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
    const Shape shape = with_rows(spec.shape, total);
    const std::size_t size = size_of(spec.dtype);
    DataPlane& plane = choose_plane({Verb::kAllgather, spec.dtype, ReduceOp::kSum, spec.device,
                                     element_count(shape) * static_cast<std::int64_t>(size)});
    const Spread spread{input(item, t), output(item, t, shape), scaled(rows, row_size(spec.shape))};
    co_await plane.allgather(size, spread);
  }
}

Task Executor::reducescatter(BatchItem& item) {
  const Request& request = item.agreement->request;
  for (std::size_t t = 0; t < request.tensors.size(); ++t) {
    const TensorSpec& spec = request.tensors[t];
    const std::vector<std::int64_t> rows = rows_by_rank(spec.shape[0], size_);
    const Shape shape = with_rows(spec.shape, rows[static_cast<std::size_t>(rank_)]);
    const std::int64_t bytes = element_count(spec.shape) * static_cast<std::int64_t>(size_of(spec.dtype));
    DataPlane& plane = choose_plane({Verb::kReducescatter, spec.dtype, request.op, spec.device, bytes});
    const Spread spread{item.submission->addresses[t].in, output(item, t, shape), scaled(rows, row_size(spec.shape))};
    co_await plane.reducescatter(reduction_of(request, spec.dtype, item.contributors), spread);
  }
}

Task Executor::alltoall(BatchItem& item) {
  const TensorSpec& spec = item.agreement->request.tensors[0];
  const auto ranks = static_cast<std::size_t>(size_);
  const auto me = static_cast<std::size_t>(rank_);
  const std::vector<std::int64_t>& rows = item.agreement->sizes;
  std::vector<std::int64_t> received(ranks);
  for (std::size_t from = 0; from < ranks; ++from) received[from] = rows[from * ranks + me];
  const std::int64_t total = std::accumulate(received.begin(), received.end(), std::int64_t{0});
  const std::int64_t row = row_size(spec.shape);
  const Shape shape = with_rows(spec.shape, total);
  const std::vector<std::int64_t> receive_counts = scaled(received, row);
  result_of(item).received_splits = std::move(received);
  // All ranks must choose the same plane, so ask for the largest size on any rank.
  std::int64_t most = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    std::int64_t sent = 0;
    std::int64_t got = 0;
    for (std::size_t s = 0; s < ranks; ++s) {
      sent += rows[r * ranks + s];
      got += rows[s * ranks + r];
    }
    most = std::max({most, sent, got});
  }
  const std::size_t size = size_of(spec.dtype);
  DataPlane& plane = choose_plane(
      {Verb::kAlltoall, spec.dtype, ReduceOp::kSum, spec.device, most * row * static_cast<std::int64_t>(size)});
  const Exchange exchange{input(item, 0), output(item, 0, shape),
                          scaled(std::span(rows).subspan(me * ranks, ranks), row), receive_counts,
                          *std::ranges::max_element(rows) * row};
  co_await plane.alltoall(size, exchange);
}

}  // namespace sirtaki
