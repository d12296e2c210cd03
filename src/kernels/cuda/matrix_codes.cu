#include <cmath>

#include "kernels/cuda/chunk.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/numbers.h"
#include "kernels/matrix_codes.h"
#include "kernels/quantize_formulas.h"

namespace megatron::kernels::cuda {
namespace {

__device__ inline float multiplier_of(LowFormat format, const MatrixPart& part, const float* scales,
                                      int64_t i) {
  const float scale = scales[part.block(i)];
  return part.edge == 0 ? scale : power_factors(format, scale).multiplier;
}

// Adjacent elements of a thread, which seldom are in more than one block.
inline constexpr int kRun = 16;

// Floats that are not negative are ordered like their bits.
__device__ inline void raise(float* most, float value) {
  atomicMax(reinterpret_cast<unsigned*>(most), __float_as_uint(value));
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    find_maxima(const T* x, int64_t n, MatrixPart part, float* maxima) {
  const int64_t begin = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kRun;
  if (begin >= n) return;
  const int64_t end = begin + kRun < n ? begin + kRun : n;
  for (int64_t i = begin; i < end;) {
    float* const maximum = maxima + part.block(i);
    const int64_t stop = i + part.run(i, end - i);
    float most = 0;
    for (; i < stop; ++i) most = fmaxf(most, fabsf(to_float(x[i])));
    raise(maximum, most);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    encode_elements(LowFormat format, const T* x, int64_t n, MatrixPart part, const float* scales,
                    uint8_t* codes) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const LowFormatBits bits(format);
  const float scaled = to_float(x[i]) * multiplier_of(format, part, scales, i);
  const uint32_t code = bits.code_of(bits.rounded(fabsf(scaled)));
  codes[i] = static_cast<uint8_t>(
      std::isnan(scaled) ? bits.nan : code | (std::signbit(scaled) ? bits.sign : 0u));
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    decode_elements(LowFormat format, const uint8_t* codes, int64_t n, MatrixPart part,
                    const float* scales, T* out) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const float factor = 1 / multiplier_of(format, part, scales, i);
  out[i] = from_float<T>(decode(format, codes[i]) * factor);
}

}  // namespace

void part_amax(const PartAmaxArgs& args, Stream& stream) {
  const int64_t n = args.x.elements();
  if (n == 0) return;
  for_storage_type("part_amax", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    launch("part_amax", find_maxima<T>, grid_for(ceil_div(n, kRun)), stream, address_of<T>(args.x),
           n, args.part, address_of<float>(args.maxima));
  });
}

void encode_part(const EncodePartArgs& args, Stream& stream) {
  const int64_t n = args.x.elements();
  if (n == 0) return;
  for_storage_type("encode_part", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    launch("encode_part", encode_elements<T>, grid_for(n), stream, args.format,
           address_of<T>(args.x), n, args.part, address_of<float>(args.scales),
           address_of<uint8_t>(args.codes));
  });
}

void decode_part(const DecodePartArgs& args, Stream& stream) {
  const int64_t n = args.out.elements();
  if (n == 0) return;
  for_storage_type("decode_part", args.out.dtype(), [&](auto type) {
    using T = decltype(type);
    launch("decode_part", decode_elements<T>, grid_for(n), stream, args.format,
           address_of<uint8_t>(args.codes), n, args.part, address_of<float>(args.scales),
           address_of<T>(args.out));
  });
}

}  // namespace megatron::kernels::cuda
