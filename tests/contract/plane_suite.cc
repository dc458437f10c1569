#include "plane_suite.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "math/dtype_dispatch.h"
#include "math/kernels.h"
#include "waiting.h"

namespace sirtaki::contract {
namespace {

using Memory = std::vector<std::byte>;
using Counts = std::vector<std::int64_t>;

// Small numbers, so that all results are exact in every dtype on up to 4 ranks. On more ranks, products are exact only
// in wide dtypes.
constexpr std::int64_t kPeriod = 3;

double value(int rank, std::size_t tensor, std::int64_t i) {
  return static_cast<double>(1 + (i * 5 + rank * 2 + static_cast<std::int64_t>(tensor)) % kPeriod);
}

double value(DType dtype, int rank, std::size_t tensor, std::int64_t i) {
  const double number = value(rank, tensor, i);
  return dtype == DType::kBool ? static_cast<double>(number > 1.5) : number;
}

Memory memory(DType dtype, std::int64_t count) { return Memory(static_cast<std::size_t>(count) * size_of(dtype)); }

void fill(Memory& out, DType dtype, int rank, std::size_t tensor) {
  with_type(dtype, [&]<class T>(std::type_identity<T>) {
    std::array<T, kPeriod> period;
    for (std::int64_t i = 0; i < kPeriod; ++i) {
      period[static_cast<std::size_t>(i)] = static_cast<T>(static_cast<float>(value(dtype, rank, tensor, i)));
    }
    T* elements = reinterpret_cast<T*>(out.data());
    for (std::size_t i = 0; i < out.size() / sizeof(T); ++i) elements[i] = period[i % kPeriod];
  });
}

template <class T>
double to_double(T element) {
  if constexpr (!std::is_integral_v<T> && sizeof(T) == 2) {
    return static_cast<double>(static_cast<float>(element));
  } else {
    return static_cast<double>(element);
  }
}

double combine(const Reduction& reduction, double a, double b) {
  const bool on_bool = reduction.dtype == DType::kBool;
  switch (reduction.op) {
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kProduct:
      return a * b;
    default:
      return on_bool ? std::max(a, b) : a + b;
  }
}

double expected(const Reduction& reduction, int size, std::size_t tensor, std::int64_t i) {
  const auto scaled = [&](double number, double factor, std::int64_t divisor = 1) {
    const double result = number * factor / static_cast<double>(divisor);
    return is_integer(reduction.dtype) ? std::trunc(result) : result;
  };
  double result = scaled(value(reduction.dtype, 0, tensor, i), reduction.prescale);
  for (int rank = 1; rank < size; ++rank) {
    result = combine(reduction, result, scaled(value(reduction.dtype, rank, tensor, i), reduction.prescale));
  }
  return scaled(result, reduction.postscale, reduction.divisor);
}

std::string title(const Reduction& reduction) {
  return std::string(name_of(reduction.op)) + " of " + std::string(name_of(reduction.dtype)) + ", prescale " +
         std::to_string(reduction.prescale) + ", postscale " + std::to_string(reduction.postscale) + ", divisor " +
         std::to_string(reduction.divisor);
}

// The first of `count` elements, of which the first is element `begin` of its tensor, that is not as expected.
std::int64_t first_wrong(const Reduction& reduction, int size, std::size_t tensor, std::int64_t begin, const void* data,
                         std::int64_t count) {
  return with_type(reduction.dtype, [&]<class T>(std::type_identity<T>) {
    std::array<double, kPeriod> right;
    for (std::int64_t i = 0; i < kPeriod; ++i) {
      right[static_cast<std::size_t>(i)] = expected(reduction, size, tensor, begin + i);
    }
    const T* elements = static_cast<const T*>(data);
    for (std::int64_t i = 0; i < count; ++i) {
      if (to_double(elements[i]) != right[static_cast<std::size_t>(i % kPeriod)]) return i;
    }
    return count;
  });
}

struct Suite {
  DataPlane& plane;
  int rank;
  int size;
  std::uint64_t position = 0;  // of the last barrier

  // Ranks differ in which tensors are reduced in place.
  bool in_place(std::size_t tensor) const { return (tensor + static_cast<std::size_t>(rank)) % 2 == 0; }

  void allreduce(const Reduction& reduction, const Counts& counts) { allreduce(reduction, counts, nullptr); }

  // As a batch of a locked plan; `absent`: the rank that departs instead, or -1.
  void pass_plan_barrier(const Reduction& reduction, const Counts& counts, int absent) {
    PlanBarrier barrier(rank == absent, ++position);
    if (rank == absent) {
      wait(plane.allreduce_behind_barrier(barrier, {}, {}));
    } else {
      allreduce(reduction, counts, &barrier);
    }
    CHECK_MESSAGE(barrier.over, "the barrier is over");
    CHECK_MESSAGE(barrier.called_off() == (absent >= 0), "all know whether a rank departs");
  }

  // A plane that leaves some of it to the next one says so to all ranks alike.
  bool does(Verb verb, const Reduction& reduction) const {
    return plane.supports({.verb = verb, .dtype = reduction.dtype, .op = reduction.asked()});
  }

  void allreduce(const Reduction& reduction, const Counts& counts, PlanBarrier* barrier) {
    if (!does(Verb::kAllreduce, reduction)) return;
    const DType dtype = reduction.dtype;
    std::vector<Memory> in, out;
    std::vector<Segment> segments;
    for (std::size_t tensor = 0; tensor < counts.size(); ++tensor) {
      in.push_back(memory(dtype, counts[tensor]));
      out.push_back(memory(dtype, counts[tensor]));
      fill(in.back(), dtype, rank, tensor);
      segments.push_back({in.back().data(), in_place(tensor) ? in.back().data() : out.back().data(), counts[tensor]});
    }
    const std::vector<Memory> before = in;
    const std::vector<Memory> untouched = out;
    wait(barrier == nullptr ? plane.allreduce(reduction, segments)
                            : plane.allreduce_behind_barrier(*barrier, reduction, segments));
    if (barrier != nullptr && barrier->called_off()) {
      CHECK_MESSAGE(in == before, "nothing is written when a rank departs");
      CHECK_MESSAGE(out == untouched, "nothing is written when a rank departs");
      return;
    }
    for (std::size_t tensor = 0; tensor < counts.size(); ++tensor) {
      const std::int64_t wrong = first_wrong(reduction, size, tensor, 0, segments[tensor].out, counts[tensor]);
      CHECK_MESSAGE(wrong == counts[tensor], "allreduce, ", title(reduction), ": element ", wrong, " of tensor ",
                    tensor);
      CHECK_MESSAGE((in_place(tensor) || in[tensor] == before[tensor]), "allreduce changed its input");
    }
  }

  void reducescatter(const Reduction& reduction, const Counts& counts) {
    if (!does(Verb::kReducescatter, reduction)) return;
    std::int64_t begin = 0;
    std::int64_t total = 0;
    for (int r = 0; r < size; ++r) {
      if (r < rank) begin += counts[static_cast<std::size_t>(r)];
      total += counts[static_cast<std::size_t>(r)];
    }
    const std::int64_t mine = counts[static_cast<std::size_t>(rank)];
    Memory in = memory(reduction.dtype, total);
    fill(in, reduction.dtype, rank, 3);
    const Memory before = in;
    Memory out = memory(reduction.dtype, mine);
    wait(plane.reducescatter(reduction, Spread{in.data(), out.data(), counts}));
    CHECK_MESSAGE(in == before, "reducescatter changed its input");
    const std::int64_t wrong = first_wrong(reduction, size, 3, begin, out.data(), mine);
    CHECK_MESSAGE(wrong == mine, "reducescatter, ", title(reduction), ": element ", wrong);
  }

  // Bytes are moved, whatever they mean.
  static Memory bytes(int rank, std::size_t number, std::size_t size) {
    Memory result(size);
    for (std::size_t i = 0; i < size; ++i) result[i] = static_cast<std::byte>(i * 3 + number * 11 + rank * 101);
    return result;
  }

  void broadcast(int root, std::size_t element_size, const Counts& counts) {
    std::vector<Memory> in, out;
    std::vector<Segment> segments;
    for (std::size_t tensor = 0; tensor < counts.size(); ++tensor) {
      const std::size_t length = static_cast<std::size_t>(counts[tensor]) * element_size;
      in.push_back(bytes(rank, tensor, length));
      out.emplace_back(length);
      segments.push_back({in.back().data(), in_place(tensor) ? in.back().data() : out.back().data(), counts[tensor]});
    }
    wait(plane.broadcast(root, element_size, segments));
    for (std::size_t tensor = 0; tensor < counts.size(); ++tensor) {
      const Memory right = bytes(root, tensor, in[tensor].size());
      const void* got = rank == root ? segments[tensor].in : segments[tensor].out;
      CHECK_MESSAGE((right.empty() || std::memcmp(got, right.data(), right.size()) == 0), "broadcast from rank ", root,
                    ", tensor ", tensor);
    }
  }

  void allgather(std::size_t element_size, const Counts& counts) {
    const auto part = [&](int r) {
      return bytes(r, 1, static_cast<std::size_t>(counts[static_cast<std::size_t>(r)]) * element_size);
    };
    Memory right;
    for (int r = 0; r < size; ++r) {
      const Memory each = part(r);
      right.insert(right.end(), each.begin(), each.end());
    }
    const Memory in = part(rank);
    Memory out(right.size());
    wait(plane.allgather(element_size, Spread{in.data(), out.data(), counts}));
    CHECK_MESSAGE(out == right, "allgather of elements of ", element_size, " bytes");
  }

  void alltoall(std::size_t element_size, std::int64_t unit) {
    const auto count = [&](int from, int to) { return (from * 2 + to * 3) % 4 * unit; };
    const auto part = [&](int from, int to) {
      return bytes(from, static_cast<std::size_t>(to), static_cast<std::size_t>(count(from, to)) * element_size);
    };
    Exchange exchange;
    Memory in, right;
    for (int r = 0; r < size; ++r) {
      exchange.send_counts.push_back(count(rank, r));
      exchange.receive_counts.push_back(count(r, rank));
      const Memory sent = part(rank, r);
      const Memory received = part(r, rank);
      in.insert(in.end(), sent.begin(), sent.end());
      right.insert(right.end(), received.begin(), received.end());
    }
    for (int from = 0; from < size; ++from) {
      for (int to = 0; to < size; ++to) exchange.longest = std::max(exchange.longest, count(from, to));
    }
    Memory out(right.size());
    exchange.in = in.data();
    exchange.out = out.data();
    wait(plane.alltoall(element_size, exchange));
    CHECK_MESSAGE(out == right, "alltoall of elements of ", element_size, " bytes");
  }

  Counts spread(std::int64_t unit, int shift) const {
    Counts counts;
    for (int r = 0; r < size; ++r) counts.push_back((r + shift) % 3 * unit);
    return counts;
  }
};

// Numbers at the ends of a dtype, and their averages over `size` ranks.
constexpr std::int64_t kEnds = 7;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

double largest(DType dtype) {
  if (dtype == DType::kFloat16) return 65504.0;
  if (dtype == DType::kBfloat16) return 0x1.fep127;
  return dtype == DType::kFloat32 ? static_cast<double>(std::numeric_limits<float>::max())
                                  : std::numeric_limits<double>::max();
}

double end(DType dtype, int rank, int size, std::int64_t i) {
  const double most = largest(dtype);
  const std::array<double, kEnds> values = {most,
                                            -most,
                                            most / size * (size - 1 - rank),
                                            -0.0,
                                            rank == 0 ? kInfinity : most,
                                            rank == 0 ? std::nan("") : 1.0,
                                            rank + 1.5};
  return values[static_cast<std::size_t>(i % kEnds)];
}

bool is_average_of_ends(DType dtype, int size, std::int64_t i, double got) {
  const auto near = [&](double right) { return std::isfinite(got) && std::abs(got / right - 1) < 0.01; };
  switch (i % kEnds) {
    case 0:
      return near(largest(dtype));
    case 1:
      return near(-largest(dtype));
    case 2:
      return size == 1 ? got == 0 : near(largest(dtype) / size * (size - 1) / 2);
    case 3:
      return got == 0 && std::signbit(got);
    case 4:
      return got == kInfinity;
    case 5:
      return std::isnan(got);
    default:
      return near((size - 1) / 2.0 + 1.5);
  }
}

void average_ends(Suite& suite, Verb verb, DType dtype, std::int64_t count) {
  const Reduction reduction{.dtype = dtype, .op = ReduceOp::kSum, .divisor = suite.size};
  if (!suite.does(verb, reduction)) return;
  const std::int64_t total = verb == Verb::kReducescatter ? count * suite.size : count;
  const std::int64_t first = verb == Verb::kReducescatter ? count * suite.rank : 0;
  Memory in = memory(dtype, total);
  Memory out = memory(dtype, count);
  with_type(dtype, [&]<class T>(std::type_identity<T>) {
    std::vector<double> ends(static_cast<std::size_t>(total));
    for (std::int64_t i = 0; i < total; ++i) ends[static_cast<std::size_t>(i)] = end(dtype, suite.rank, suite.size, i);
    convert(dtype, in.data(), DType::kFloat64, ends.data(), total, 1.0);
    if (verb == Verb::kReducescatter) {
      wait(suite.plane.reducescatter(
          reduction, Spread{in.data(), out.data(), Counts(static_cast<std::size_t>(suite.size), count)}));
    } else {
      const Segment segment{in.data(), suite.in_place(0) ? in.data() : out.data(), count};
      wait(suite.plane.allreduce(reduction, {&segment, 1}));
    }
    const bool in_input = verb == Verb::kAllreduce && suite.in_place(0);
    const T* results = reinterpret_cast<const T*>(in_input ? in.data() : out.data());
    std::int64_t i = 0;  // one check for all: each takes a lock, which all ranks of this process share
    while (i < count && is_average_of_ends(dtype, suite.size, first + i, to_double(results[i]))) ++i;
    CHECK_MESSAGE(i == count, std::string(name_of(verb)), " at the ends of ", std::string(name_of(dtype)), ", element ",
                  first + i, " of ", first + count, " is ", i < count ? to_double(results[i]) : 0.0);
  });
}

// Of every dtype: integers are divided exactly, floats stay within their range.
void check_averages(Suite& suite) {
  for (int d = 0; d < kDTypeCount; ++d) {
    const auto dtype = static_cast<DType>(d);
    if (is_integer(dtype)) {
      for (const double postscale : {1.0, 2.0}) {
        const Reduction reduction{dtype, ReduceOp::kSum, 1, postscale, suite.size};
        for (const Counts& counts : {Counts{3}, Counts{0, 1, 40, 10'001}}) suite.allreduce(reduction, counts);
        suite.reducescatter(reduction, suite.spread(1037, 1));
      }
    } else if (dtype != DType::kBool) {
      for (const std::int64_t count : {7, 30'007, 400'001}) average_ends(suite, Verb::kAllreduce, dtype, count);
      average_ends(suite, Verb::kReducescatter, dtype, 3'001);
    }
  }
}

// Min and Max show a NaN that any rank has.
void check_nans(Suite& suite) {
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kSum, ReduceOp::kProduct}) {
    const Reduction reduction{.dtype = DType::kFloat32, .op = op};
    if (!suite.does(Verb::kAllreduce, reduction)) continue;
    for (int owner = 0; owner < suite.size; ++owner) {
      std::vector<float> data(2000, suite.rank == owner ? std::nanf("") : static_cast<float>(suite.rank));
      const Segment segment{data.data(), data.data(), 2000};
      wait(suite.plane.allreduce(reduction, {&segment, 1}));
      CHECK_MESSAGE(std::ranges::all_of(data, [](float x) { return std::isnan(x); }), "a NaN is lost by ",
                    title(reduction));
    }
  }
}

// Batches with nothing, one element, odd sizes, several pieces, and many small ones between large ones.
std::vector<Counts> batches() {
  Counts mixed;
  for (int i = 0; i < 200; ++i) mixed.push_back(i % 50 == 49 ? 100'003 + i : i * i % 97 * 13);
  return {{}, {0}, {1}, {0, 7, 0}, {1000}, {20'000, 30'011}, mixed};
}

void check_reductions(Suite& suite, const std::vector<std::array<double, 2>>& scales) {
  for (int d = 0; d < kDTypeCount; ++d) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      for (const auto& [prescale, postscale] : scales) {
        const auto dtype = static_cast<DType>(d);
        if (dtype == DType::kBool && (prescale != 1 || postscale != 1)) continue;
        const bool narrow = suite.size > 4 && size_of(dtype) < sizeof(float);
        if (op == ReduceOp::kProduct && (prescale > 1 || narrow)) continue;  // would not be exact
        const Reduction reduction{dtype, op, prescale, postscale};
        for (const Counts& counts : {Counts{3}, Counts{0, 1, 40, 1001}}) suite.allreduce(reduction, counts);
        for (const int shift : {0, 1, 2}) suite.reducescatter(reduction, suite.spread(37, shift));
      }
    }
  }
}

void check_batches(Suite& suite) {
  for (const Reduction& reduction :
       {Reduction{DType::kFloat32, ReduceOp::kSum, 1, 1}, Reduction{DType::kFloat32, ReduceOp::kSum, 0.5, 0.25},
        Reduction{DType::kBfloat16, ReduceOp::kSum, 1, 0.5}, Reduction{DType::kInt8, ReduceOp::kMax, 1, 1},
        Reduction{DType::kInt16, ReduceOp::kSum, 1, 0.5}, Reduction{DType::kFloat64, ReduceOp::kMin, 2, 1}}) {
    for (const Counts& counts : batches()) suite.allreduce(reduction, counts);
    suite.allreduce(reduction, {1'500'007});
    suite.allreduce(reduction, {5, 700'001, 11, 262'144, 900'000, 6});
    suite.reducescatter(reduction, suite.spread(300'007, 1));
  }
}

void check_moves(Suite& suite) {
  for (const std::size_t element_size : {1, 2, 4, 8}) {
    for (int root = 0; root < suite.size; ++root) {
      for (const Counts& counts : batches()) suite.broadcast(root, element_size, counts);
    }
    suite.broadcast(0, element_size, {5, 700'001, 11, 3'000'000, 6});
    for (const std::int64_t unit : {0, 1, 1001, 400'000}) {
      for (const int shift : {0, 1, 2}) suite.allgather(element_size, suite.spread(unit, shift));
      suite.alltoall(element_size, unit);
    }
  }
}

void check_all_allreduces(Suite& suite) {
  constexpr std::array kNarrow = {DType::kInt8, DType::kUint8, DType::kBfloat16};
  for (int d = 0; d < kDTypeCount; ++d) {
    const auto dtype = static_cast<DType>(d);
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      const bool narrow = std::ranges::find(kNarrow, dtype) != kNarrow.end();
      if (op == ReduceOp::kProduct && narrow && suite.size > 4) continue;
      for (const double postscale : {1.0, 0.5}) {
        if (dtype == DType::kBool && postscale != 1) continue;
        for (const Counts& counts : {Counts{3}, Counts{0, 1, 40, 1001}})
          suite.allreduce({dtype, op, 1, postscale}, counts);
      }
    }
  }
}

void check_plan_barriers(Suite& suite, const std::vector<Counts>& batches = {{}, {3}, {0, 1, 40, 400}, {700'001, 11}}) {
  const Reduction reduction{DType::kFloat32, ReduceOp::kSum, 0.5, 0.25};
  for (const Counts& counts : batches) {
    suite.pass_plan_barrier(reduction, counts, -1);
    for (int absent = 0; absent < suite.size; ++absent) suite.pass_plan_barrier(reduction, counts, absent);
    suite.pass_plan_barrier(reduction, counts, -1);
    suite.allreduce(reduction, counts);
  }
}

void check_answers(const DataPlane& plane) {
  CHECK_MESSAGE(!plane.supports({.verb = Verb::kAllreduce, .device = 0}), "supports a GPU");
  CHECK_MESSAGE(!plane.supports({.verb = Verb::kBarrier}), "supports a barrier");
  for (const Verb verb :
       {Verb::kAllreduce, Verb::kBroadcast, Verb::kAllgather, Verb::kAlltoall, Verb::kReducescatter}) {
    CHECK_MESSAGE(plane.supports({.verb = verb, .bytes = 1 << 20}), "does not support ", std::string(name_of(verb)));
  }
}

}  // namespace

void check_plane(DataPlane& plane, int rank, int size) {
  Suite suite{plane, rank, size};
  check_answers(plane);
  check_reductions(suite, {{1, 1}, {0.5, 1}, {1, 0.25}, {2, 0.5}});
  check_averages(suite);
  check_nans(suite);
  check_batches(suite);
  check_plan_barriers(suite);
  check_moves(suite);
}

void check_plane_briefly(DataPlane& plane, int rank, int size) {
  Suite suite{plane, rank, size};
  check_answers(plane);
  check_reductions(suite, {{1, 1}, {0.5, 0.25}});
  check_averages(suite);
  for (const Counts& counts : batches()) suite.allreduce({DType::kFloat32, ReduceOp::kSum, 1, 0.25}, counts);
  suite.allreduce({DType::kBfloat16, ReduceOp::kSum, 1, 0.5}, {5, 700'001, 11, 262'144, 900'000, 6});
  check_plan_barriers(suite);
  suite.broadcast(size - 1, 4, {5, 700'001, 11, 0, 6});
  for (const int shift : {0, 1}) suite.allgather(2, suite.spread(40'001, shift));
  suite.alltoall(8, 20'001);
}

void check_plane_on_many_ranks(DataPlane& plane, int rank, int size) {
  Suite suite{plane, rank, size};
  check_answers(plane);
  check_reductions(suite, {{1, 1}});
  suite.allreduce({DType::kFloat32, ReduceOp::kSum, 1, 0.25}, {5, 30'011, 0, 7});
  check_plan_barriers(suite, {{0, 1, 40, 400}});
  suite.broadcast(size - 1, 4, {5, 20'001, 0, 6});
  for (const int shift : {0, 1}) suite.allgather(2, suite.spread(1'001, shift));
  suite.alltoall(8, 501);
}

void check_allreduce_plane(DataPlane& plane, int rank, int size) {
  Suite suite{plane, rank, size};
  CHECK_MESSAGE(plane.supports({.verb = Verb::kAllreduce}), "does not support allreduce");
  for (const Verb verb : {Verb::kBroadcast, Verb::kAllgather, Verb::kBarrier}) {
    CHECK_MESSAGE(!plane.supports({.verb = verb}), "supports ", std::string(name_of(verb)));
  }
  CHECK_MESSAGE(!plane.supports({.verb = Verb::kAllreduce, .device = 0}), "supports a GPU");
  CHECK_MESSAGE(!plane.supports({.verb = Verb::kAllreduce, .op = ReduceOp::kAdasum}), "supports Adasum");
  check_all_allreduces(suite);
  check_averages(suite);
  check_nans(suite);
  check_plan_barriers(suite);
  for (const Reduction& reduction :
       {Reduction{DType::kFloat32, ReduceOp::kSum, 0.5, 0.25}, Reduction{DType::kBfloat16, ReduceOp::kSum, 1, 0.5},
        Reduction{DType::kInt8, ReduceOp::kSum, 1, 0.5}}) {
    for (const Counts& counts : batches()) suite.allreduce(reduction, counts);
    suite.allreduce(reduction, {5, 700'001, 11, 262'144, 900'000, 6});
  }
}

}  // namespace sirtaki::contract
