#include "comm/reduce.h"

#include <algorithm>
#include <array>
#include <type_traits>

#include "base/divide.h"
#include "base/error.h"

namespace megatron::comm {

std::string_view name(Reduce op) { return op == Reduce::sum ? "sum" : "max"; }

namespace {

constexpr int64_t kBlock = 512;
constexpr int64_t kThreadBlock = int64_t{1} << 16;  // elements per thread at a time

// 64-bit integers are added as unsigned, so that they wrap.
template <class T>
using Sum = std::conditional_t<std::is_integral_v<T>, uint64_t,
                               std::conditional_t<std::is_same_v<T, double>, double, float>>;
template <class T>
using Max = std::conditional_t<std::is_integral_v<T>, int64_t, Sum<T>>;

template <class Acc>
struct Add {
  static Acc combine(Acc a, Acc x) { return a + x; }
};
template <class Acc>
struct Maximum {
  static Acc combine(Acc a, Acc x) { return x > a || x != x ? x : a; }
};

template <class T, class Acc, template <class> class Operation>
void reduce_typed(std::span<const void* const> sources, std::span<void* const> destinations,
                  int64_t begin, int64_t end) {
  std::array<Acc, kBlock> sums;
  for (int64_t at = begin; at < end; at += kBlock) {
    const auto n = static_cast<size_t>(std::min(kBlock, end - at));
    const T* first = static_cast<const T*>(sources[0]) + at;
    for (size_t i = 0; i < n; ++i) sums[i] = static_cast<Acc>(first[i]);
    for (const void* source : sources.subspan(1)) {
      const T* x = static_cast<const T*>(source) + at;
      for (size_t i = 0; i < n; ++i)
        sums[i] = Operation<Acc>::combine(sums[i], static_cast<Acc>(x[i]));
    }
    for (void* destination : destinations) {
      T* out = static_cast<T*>(destination) + at;
      for (size_t i = 0; i < n; ++i) out[i] = static_cast<T>(sums[i]);
    }
  }
}

template <class T>
void reduce_any(std::span<const void* const> sources, std::span<void* const> destinations,
                Reduce op, int64_t begin, int64_t end) {
  if (op == Reduce::sum) {
    reduce_typed<T, Sum<T>, Add>(sources, destinations, begin, end);
  } else {
    reduce_typed<T, Max<T>, Maximum>(sources, destinations, begin, end);
  }
}

}  // namespace

void reduce(std::span<const void* const> sources, std::span<void* const> destinations, DType type,
            Reduce op, int64_t begin, int64_t end) {
  switch (type) {
    case DType::f64: return reduce_any<double>(sources, destinations, op, begin, end);
    case DType::f32: return reduce_any<float>(sources, destinations, op, begin, end);
    case DType::bf16: return reduce_any<bf16>(sources, destinations, op, begin, end);
    case DType::f16: return reduce_any<f16>(sources, destinations, op, begin, end);
    case DType::i64: return reduce_any<int64_t>(sources, destinations, op, begin, end);
    case DType::i32: return reduce_any<int32_t>(sources, destinations, op, begin, end);
    case DType::i16: return reduce_any<int16_t>(sources, destinations, op, begin, end);
    case DType::i8: return reduce_any<int8_t>(sources, destinations, op, begin, end);
    case DType::u16: return reduce_any<uint16_t>(sources, destinations, op, begin, end);
    case DType::u8: return reduce_any<uint8_t>(sources, destinations, op, begin, end);
  }
  MG_ASSERT(false);
}

void reduce(std::span<const void* const> sources, std::span<void* const> destinations, DType type,
            Reduce op, int64_t begin, int64_t end, ThreadPool& pool) {
  const int64_t blocks = ceil_div(end - begin, kThreadBlock);
  if (blocks <= 1) return reduce(sources, destinations, type, op, begin, end);
  pool.parallel_for(blocks, [&](int64_t block, int) {
    const int64_t at = begin + block * kThreadBlock;
    reduce(sources, destinations, type, op, at, std::min(end, at + kThreadBlock));
  });
}

}  // namespace megatron::comm
