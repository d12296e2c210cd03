#include <cmath>

#include "kernels/cuda/chunk.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/numbers.h"
#include "kernels/matrix_codes.h"
#include "kernels/quantize_formulas.h"

namespace megatron::kernels::cuda {
namespace {

struct Scales {
  LowFormat format;
  MatrixPart part;
  const float *of_blocks, *whole;  // whole: the tensor's scale, for e2m1 only

  // Factors of element i: `multiplier` before it is rounded, `inverse` of its decoded number.
  struct Factors {
    float multiplier, inverse;
  };
  __device__ Factors of(int64_t i) const {
    const float of_block = of_blocks[part.block(i)];
    if (format == LowFormat::e2m1) {
      const BlockFactors f = fp4_factors(of_block, *whole, false);
      return {f.multiplier, f.factor * (1 / *whole)};
    }
    const float m = part.edge == 0 ? of_block : power_factors(format, of_block).multiplier;
    return {m, 1 / m};
  }
};
template <class Args>
Scales scales_of(const Args& args) {
  return {args.format, args.part, address_of<float>(args.scales), address_of<float>(args.scale)};
}

// Adjacent elements that a thread processes; they are rarely in more than one block.
inline constexpr int kRun = 16;

// most = max(most, value), atomically. Non-negative floats are ordered like their bits.
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

// A thread writes a byte, which has the codes of kPerByte elements.
template <int kPerByte, class T>
__global__ void __launch_bounds__(kThreads)
    encode_elements(Scales scales, const T* x, int64_t n, uint8_t* codes) {
  const int64_t byte = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const LowFormatBits bits(scales.format);
  uint32_t made = 0;
  for (int k = 0; k < kPerByte; ++k) {
    const int64_t i = byte * kPerByte + k;
    if (i >= n) break;
    const float scaled = to_float(x[i]) * scales.of(i).multiplier;
    const uint32_t code = bits.code_of(bits.rounded(fabsf(scaled)));
    made |= (std::isnan(scaled) ? bits.nan : code | (std::signbit(scaled) ? bits.sign : 0u))
            << 4 * k;
  }
  if (byte * kPerByte < n) codes[byte] = static_cast<uint8_t>(made);
}

template <int kPerByte, class T>
__global__ void __launch_bounds__(kThreads)
    decode_elements(Scales scales, const uint8_t* codes, int64_t n, T* out) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const uint32_t byte = codes[i / kPerByte],
                 code = kPerByte == 1 ? byte : byte >> i % kPerByte * 4 & 15u;
  out[i] = from_float<T>(decode(scales.format, static_cast<uint8_t>(code)) * scales.of(i).inverse);
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
    const bool fp4 = args.format == LowFormat::e2m1;
    launch("encode_part", fp4 ? encode_elements<2, T> : encode_elements<1, T>,
           grid_for(args.codes.elements()), stream, scales_of(args), address_of<T>(args.x), n,
           address_of<uint8_t>(args.codes));
  });
}

void decode_part(const DecodePartArgs& args, Stream& stream) {
  const int64_t n = args.out.elements();
  if (n == 0) return;
  for_storage_type("decode_part", args.out.dtype(), [&](auto type) {
    using T = decltype(type);
    const bool fp4 = args.format == LowFormat::e2m1;
    launch("decode_part", fp4 ? decode_elements<2, T> : decode_elements<1, T>, grid_for(n), stream,
           scales_of(args), address_of<uint8_t>(args.codes), n, address_of<T>(args.out));
  });
}

}  // namespace megatron::kernels::cuda
