#include <bit>
#include <cstring>

#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"
#include "kernels/table.h"

namespace megatron::kernels::cuda {
namespace {

template <class A, class B, class Out>
struct Add {
  static constexpr int kCount = kNeighbours<A, B, Out>, kUnroll = 16 / kCount;
  using Factors = NoFactors;
  struct Values {
    float a[kCount], b[kCount];
  };
  const A* a;
  const B* b;
  Out* out;
  int64_t row;  // elements of b if it is a single row, else 0
  bool whole;   // no vector crosses the end of a row

  __device__ void prepare(Factors&) const {}
  __device__ void read(const Span& span, Values& v) const {
    cuda::read(a, span, v.a);
    if (row == 0) return cuda::read(b, span, v.b);
    const int64_t column = span.first % row;
    if (whole) return cuda::read(b, {column, span.count, span.vector}, v.b);
#pragma unroll
    for (int k = 0; k < kCount; ++k) v.b[k] = to_float(b[(column + k) % row]);
  }
  __device__ void write(const Span& span, const Factors&, Values& v) const {
#pragma unroll
    for (int k = 0; k < kCount; ++k) v.a[k] += v.b[k];
    cuda::write(out, span, v.a);
  }
};

template <class A, class B, class Out>
void add_typed(const AddArgs& args, Stream& stream) {
  using Body = Add<A, B, Out>;
  constexpr int kCount = Body::kCount;
  const int64_t row = args.b.rank() < args.a.rank() ? args.b.elements() : 0;
  const Body body{static_cast<const A*>(args.a.address()), static_cast<const B*>(args.b.address()),
                  static_cast<Out*>(args.out.address()), row, row % kCount == 0};
  const bool vectors =
      aligned<kCount>(body.a) && aligned<kCount>(body.b) && aligned<kCount>(body.out);
  run_over_elements("add", args.out.elements(), vectors, body, stream);
}

// Fills a tensor with the bits of a T.
template <class T>
struct Fill {
  static constexpr int kCount = kVectorBytes / static_cast<int>(sizeof(T)), kUnroll = 4;
  using Factors = NoFactors;
  struct Values {};
  T* out;
  T value;

  __device__ void prepare(Factors&) const {}
  __device__ void read(const Span&, Values&) const {}
  __device__ void write(const Span& span, const Factors&, Values&) const {
    if (span.vector) {
      Vector<T, kCount> v;
#pragma unroll
      for (int k = 0; k < kCount; ++k) v.at[k] = value;
      return store_vector(out + span.first, v);
    }
    for (int k = 0; k < span.count; ++k) out[span.first + k] = value;
  }
};

template <class Bits, class T>
void fill_with(const FillArgs& args, T value, Stream& stream) {
  static_assert(sizeof(Bits) == sizeof(T));
  Fill<Bits> body{static_cast<Bits*>(args.out.address()), {}};
  std::memcpy(&body.value, &value, sizeof(Bits));
  run_over_elements("fill", args.out.elements(), aligned<Fill<Bits>::kCount>(body.out), body,
                    stream);
}

}  // namespace

void add(const AddArgs& args, Stream& stream) {
  for_storage_type("add", args.a.dtype(), [&](auto a) {
    for_storage_type("add", args.b.dtype(), [&](auto b) {
      for_storage_type("add", args.out.dtype(), [&](auto out) {
        add_typed<decltype(a), decltype(b), decltype(out)>(args, stream);
      });
    });
  });
}

void fill(const FillArgs& args, Stream& stream) {
  const double value = args.value;
  const float narrow = static_cast<float>(value);
  switch (args.out.dtype()) {
    case DType::f64: return fill_with<uint64_t>(args, value, stream);
    case DType::f32: return fill_with<uint32_t>(args, narrow, stream);
    case DType::bf16: return fill_with<uint16_t>(args, bf16(narrow), stream);
    case DType::f16: return fill_with<uint16_t>(args, f16(narrow), stream);
    case DType::i64: return fill_with<uint64_t>(args, static_cast<int64_t>(value), stream);
    case DType::i32: return fill_with<uint32_t>(args, static_cast<int32_t>(value), stream);
    case DType::i16: return fill_with<uint16_t>(args, static_cast<int16_t>(value), stream);
    case DType::i8: return fill_with<uint8_t>(args, static_cast<int8_t>(value), stream);
    case DType::u16: return fill_with<uint16_t>(args, static_cast<uint16_t>(value), stream);
    case DType::u8: return fill_with<uint8_t>(args, static_cast<uint8_t>(value), stream);
  }
}

}  // namespace megatron::kernels::cuda
