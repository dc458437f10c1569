#include "device/cuda_kernels.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "math/kernels.h"

namespace sirtaki {
namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = 32;  // elements; each block takes kThreads * kPerThread of one part
constexpr int kParts = 144;     // as many as fit into the 4 KiB that a kernel's parameters may have

// Parts by value, so that a launch needs no memory of its own that would have to outlive it.
struct PartList {
  std::array<const void*, kParts> in;
  std::array<void*, kParts> out;
  std::array<long long, kParts> count;
  std::array<unsigned int, kParts> first_block;
  double factor;
  long long divisor;
  int keeps_finite;
  int parts;
};
static_assert(sizeof(PartList) <= 4096);

// 16-bit floats are read and written by shifts and by the GPU's own conversions, since the compiler comes without
// CUDA's headers. Integers are scaled as on the host: exactly where they are only divided, else by way of double,
// truncated toward zero, and clamped; unscaled they are cast. For floats `factor` is the whole scale.
constexpr const char* kSource = R"cuda(
struct Half { unsigned short bits; };
struct Brain { unsigned short bits; };

__device__ float widen(Half value) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
}
__device__ float widen(Brain value) { return __uint_as_float((unsigned int)value.bits << 16); }
template <class T> __device__ T widen(T value) { return value; }

template <class T> struct To {
  template <class S> static __device__ T cast(S value) { return (T)value; }
};
template <> struct To<Half> {
  template <class S> static __device__ Half cast(S value) {
    Half result;
    float single = (float)value;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(single));
    return result;
  }
};
template <> struct To<Brain> {
  template <class S> static __device__ Brain cast(S value) {
    Brain result;
    unsigned int word = __float_as_uint((float)value);
    unsigned int rounded = (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
    result.bits = (word & 0x7fffffffu) > 0x7f800000u ? (word >> 16) | 0x40u : rounded;
    return result;
  }
};

typedef FROM_TYPE From;
typedef TO_TYPE To_;
#define VECTOR 4
template <class T> struct alignas(sizeof(T) * VECTOR) Vector { T at[VECTOR]; };

// The divisor of integers is that of a sum of as many numbers, so that the quotient is in their range. LOWEST and
// HIGHEST are those of an integer TO_TYPE.
__device__ To_ converted(From value, double factor, long long divisor, int keeps_finite) {
#if SCALES && TO_INTEGER && FROM_INTEGER
  if (factor == 1.0) return (To_)((WideInteger)value / (WideInteger)divisor);
#endif
#if SCALES && TO_INTEGER
  double scaled = (double)widen(value) * factor / (double)divisor;
  if (!(scaled > LOWEST_AS_DOUBLE)) return scaled != scaled ? (To_)0 : (To_)LOWEST;
  return scaled >= HIGHEST_AS_DOUBLE ? (To_)HIGHEST : (To_)scaled;
#elif SCALES && HIGHEST_FLOAT
  From scaled = value * (From)factor;
  if (keeps_finite && isinf(scaled) && !isinf(value)) scaled = scaled < 0 ? -MOST : MOST;
  return scaled;
#elif SCALES && DOUBLE
  return To<To_>::cast((double)widen(value) * factor);
#elif SCALES
  return To<To_>::cast((float)widen(value) * (float)factor);
#else
  return To<To_>::cast(widen(value));
#endif
}

struct Parts {
  const void* in[PARTS];
  void* out[PARTS];
  long long count[PARTS];
  unsigned int first_block[PARTS];
  double factor;
  long long divisor;
  int keeps_finite;
  int parts;
};

extern "C" __global__ void convert(const __grid_constant__ Parts list) {
  int low = 0, high = list.parts - 1;
  while (low < high) {
    int middle = (low + high + 1) / 2;
    if (list.first_block[middle] <= blockIdx.x) low = middle; else high = middle - 1;
  }
  const long long chunk = (long long)THREADS * PER_THREAD;
  const long long begin = (long long)(blockIdx.x - list.first_block[low]) * chunk;
  const From* in = (const From*)list.in[low] + begin;
  To_* out = (To_*)list.out[low] + begin;
  const long long left = list.count[low] - begin;
  const int count = left < chunk ? (int)left : (int)chunk;
  const bool even = ((unsigned long long)in % sizeof(Vector<From>)) == 0 &&
                    ((unsigned long long)out % sizeof(Vector<To_>)) == 0;
  int done = 0;
  if (even) {
    const int vectors = count / VECTOR;
    #pragma unroll 4
    for (int i = threadIdx.x; i < vectors; i += THREADS) {
      Vector<From> read = ((const Vector<From>*)in)[i];
      Vector<To_> write;
      for (int k = 0; k < VECTOR; ++k) write.at[k] = converted(read.at[k], list.factor, list.divisor, list.keeps_finite);
      ((Vector<To_>*)out)[i] = write;
    }
    done = vectors * VECTOR;
  }
  for (int i = done + threadIdx.x; i < count; i += THREADS) {
    out[i] = converted(in[i], list.factor, list.divisor, list.keeps_finite);
  }
}
)cuda";

constexpr const char* kFillSource = R"cuda(
extern "C" __global__ void fill(WORD* out, long long count, WORD value) {
  long long step = (long long)gridDim.x * blockDim.x;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) out[i] = value;
}
)cuda";

const char* type_name(DType dtype) {
  constexpr std::array<const char*, kDTypeCount> kNames = {
      "unsigned char",      "unsigned char", "signed char", "unsigned short", "short", "unsigned int", "int",
      "unsigned long long", "long long",     "Half",        "Brain",          "float", "double"};
  return kNames[static_cast<std::size_t>(dtype)];
}

bool is_unsigned(DType dtype) {
  return dtype == DType::kUint8 || dtype == DType::kUint16 || dtype == DType::kUint32 || dtype == DType::kUint64 ||
         dtype == DType::kBool;
}

bool is_float_of_c(DType dtype) { return dtype == DType::kFloat32 || dtype == DType::kFloat64; }

// The least and the greatest value, as integers and as doubles of which a value beyond has to be clamped.
std::string limits(DType dtype) {
  const auto bits = static_cast<int>(size_of(dtype)) * 8;
  const std::string type = type_name(dtype);
  const std::string highest = is_unsigned(dtype) ? "(" + type + ")~(" + type + ")0"
                                                 : "(" + type + ")((1ull << " + std::to_string(bits - 1) + ") - 1)";
  const std::string lowest = is_unsigned(dtype) ? "0" : "(-(" + highest + ") - 1)";
  const std::string power = "0x1p" + std::to_string(is_unsigned(dtype) ? bits : bits - 1);
  return "#define HIGHEST " + highest + "\n#define LOWEST " + lowest + "\n#define HIGHEST_AS_DOUBLE " + power +
         "\n#define LOWEST_AS_DOUBLE " + (is_unsigned(dtype) ? "0.0" : "-" + power) + "\n";
}

std::string define(const char* name, const std::string& value) {
  return std::string("#define ") + name + " " + value + "\n";
}

bool is_wide(DType dtype) { return is_integer(dtype) || dtype == DType::kFloat64 || dtype == DType::kBool; }

std::string word_of(DType dtype) {
  switch (size_of(dtype)) {
    case 1:
      return "unsigned char";
    case 2:
      return "unsigned short";
    case 4:
      return "unsigned int";
    default:
      return "unsigned long long";
  }
}

}  // namespace

CudaKernels::CudaKernels(const CudaDriver& driver, std::shared_ptr<const Nvrtc> compiler, CuDevice device)
    : driver_(driver), compiler_(std::move(compiler)) {
  driver_.check(driver_.DeviceGetAttribute(&major_, kCuAttributeMajor, device), "cuDeviceGetAttribute");
  driver_.check(driver_.DeviceGetAttribute(&minor_, kCuAttributeMinor, device), "cuDeviceGetAttribute");
}

CuFunction CudaKernels::build(const std::string& source, const char* name) {
  std::vector<char> code;
  try {
    code = compiler_->compile(source, major_, minor_);
  } catch (const std::exception& error) {
    throw Error(ErrorKind::kAborted, std::string("a kernel does not compile: ") + error.what());
  }
  CuModule module = nullptr;
  CuFunction function = nullptr;
  driver_.check(driver_.ModuleLoadData(&module, code.data()), "cuModuleLoadData");
  driver_.check(driver_.ModuleGetFunction(&function, module, name), "cuModuleGetFunction");
  return function;
}

CuFunction CudaKernels::conversion(DType to, DType from, bool scales) {
  const std::lock_guard lock(mutex_);
  CuFunction& function = conversions_[{to, from, scales}];
  if (function != nullptr) return function;
  std::string source =
      define("FROM_TYPE", type_name(from)) + define("TO_TYPE", type_name(to)) + define("SCALES", scales ? "1" : "0") +
      define("TO_INTEGER", is_integer(to) ? "1" : "0") + define("FROM_INTEGER", is_integer(from) ? "1" : "0") +
      define("HIGHEST_FLOAT", to == from && is_float_of_c(to) ? "1" : "0") +
      define("MOST", to == DType::kFloat32 ? "3.402823466e38f" : "1.7976931348623157e308") +
      define("WideInteger", is_unsigned(from) ? "unsigned long long" : "long long") +
      define("DOUBLE", is_wide(to) || is_wide(from) ? "1" : "0") + define("PARTS", std::to_string(kParts)) +
      define("THREADS", std::to_string(kThreads)) + define("PER_THREAD", std::to_string(kPerThread));
  if (is_integer(to)) source += limits(to);
  return function = build(source + kSource, "convert");
}

CuFunction CudaKernels::filler(DType dtype) {
  const std::lock_guard lock(mutex_);
  CuFunction& function = fillers_[dtype];
  if (function == nullptr) function = build(define("WORD", word_of(dtype)) + kFillSource, "fill");
  return function;
}

void CudaKernels::convert(DType to, DType from, std::span<const Part> parts, Scale scale, Stream stream) {
  constexpr std::int64_t kChunk = std::int64_t{kThreads} * kPerThread;
  CuFunction function = nullptr;
  PartList list;
  std::int64_t blocks = 0;
  const auto launch = [&] {
    if (list.parts == 0) return;
    if (function == nullptr) function = conversion(to, from, !scale.is_one());
    std::array<void*, 1> arguments = {&list};
    driver_.check(driver_.LaunchKernel(function, static_cast<unsigned int>(blocks), 1, 1, kThreads, 1, 1, 0, stream,
                                       arguments.data(), nullptr),
                  "cuLaunchKernel");
    list.parts = 0;
    blocks = 0;
  };
  list.factor = is_integer(to) ? scale.factor : scale.quotient();
  list.divisor = scale.divisor;
  list.keeps_finite = scale.keeps_finite() ? 1 : 0;
  list.parts = 0;
  for (const Part& part : parts) {
    if (part.count == 0) continue;
    const auto i = static_cast<std::size_t>(list.parts++);
    list.in[i] = part.in;
    list.out[i] = part.out;
    list.count[i] = part.count;
    list.first_block[i] = static_cast<unsigned int>(blocks);
    blocks += (part.count + kChunk - 1) / kChunk;
    if (list.parts == kParts || blocks > (1 << 30)) launch();
  }
  launch();
}

void CudaKernels::fill_identity(DType dtype, ReduceOp op, void* out, std::int64_t count, Stream stream) {
  if (count == 0) return;
  unsigned long long value = 0;
  sirtaki::fill_identity(dtype, op, &value, 1);
  std::array<void*, 3> arguments = {&out, &count, &value};  // little endian: the word is at the front of `value`
  const auto blocks = static_cast<unsigned int>(std::min<std::int64_t>((count + kThreads - 1) / kThreads, 4096));
  driver_.check(driver_.LaunchKernel(filler(dtype), blocks, 1, 1, kThreads, 1, 1, 0, stream, arguments.data(), nullptr),
                "cuLaunchKernel");
}

}  // namespace sirtaki
