#include "kernels/matrix_codes.h"

#include <array>
#include <bit>
#include <cmath>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/quantize_formulas.h"

namespace megatron::kernels::cpu {
namespace {

// Calls f(first element, count, block) for each run of elements in one row of one block.
template <class F>
void for_runs(Stream& stream, const MatrixPart& part, int64_t n, F&& f) {
  for_blocks(stream, n, kBlockElements, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin, count; i < end; i += count) {
      count = part.run(i, end - i);
      f(i, count, part.block(i));
    }
  });
}

// Elements are multiplied by `multiplier` before they are rounded to codes, decoded numbers by
// `inverse`.
struct Factors {
  float multiplier, inverse;
};
template <class Args>
Factors factors_of(const Args& args, float of_block) {
  if (args.format == LowFormat::e2m1) {
    const float scale = *args.scale.template data<float>();
    const BlockFactors f = fp4_factors(of_block, scale, false);
    return {f.multiplier, f.factor * (1 / scale)};
  }
  const float m = args.part.edge == 0 ? of_block : power_factors(args.format, of_block).multiplier;
  return {m, 1 / m};
}

template <class T>
float largest_of(const T* x, int64_t n) {
  uint32_t most = 0;  // floats that are not negative are ordered like their bits
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t size = std::bit_cast<uint32_t>(static_cast<float>(x[i])) & ~(1U << 31);
    most = std::max(most, size > kFloatExponent ? 0 : size);
  }
  return std::bit_cast<float>(most);
}

}  // namespace

void part_amax(const PartAmaxArgs& args, Stream& stream) {
  float* maxima = args.maxima.data<float>();
  for_storage_type("part_amax", args.x.dtype(), [&](auto type) {
    const auto* x = args.x.data<decltype(type)>();
    for_runs(stream, args.part, args.x.elements(), [&](int64_t i, int64_t n, int64_t block) {
      raise(maxima + block, largest_of(x + i, n));
    });
  });
}

void encode_part(const EncodePartArgs& args, Stream& stream) {
  const LowFormatBits bits(args.format);
  const bool fp4 = args.format == LowFormat::e2m1;  // the blocks of a thread begin with whole bytes
  const float* scales = args.scales.data<float>();
  auto* codes = args.codes.data<uint8_t>();
  for_storage_type("encode_part", args.x.dtype(), [&](auto type) {
    const auto* x = args.x.data<decltype(type)>();
    for_runs(stream, args.part, args.x.elements(), [&](int64_t begin, int64_t n, int64_t block) {
      const float factor = factors_of(args, scales[block]).multiplier;
      for (int64_t i = begin; i < begin + n; ++i) {
        const float scaled = static_cast<float>(x[i]) * factor;
        const uint32_t sign = std::signbit(scaled) ? bits.sign : 0;
        const uint32_t code = bits.code_of(bits.rounded(std::abs(scaled))) | sign;
        const auto made = static_cast<uint8_t>(std::isnan(scaled) ? bits.nan : code);
        if (!fp4) codes[i] = made;
        else if (i % 2 == 0) codes[i / 2] = made;
        else codes[i / 2] = static_cast<uint8_t>(codes[i / 2] | made << 4);
      }
    });
  });
}

void decode_part(const DecodePartArgs& args, Stream& stream) {
  const bool fp4 = args.format == LowFormat::e2m1;
  std::array<float, 256> numbers;
  for (size_t code = 0; code < (fp4 ? 16 : numbers.size()); ++code)
    numbers[code] = decode(args.format, static_cast<uint8_t>(code));
  const float* scales = args.scales.data<float>();
  const auto* codes = args.codes.data<uint8_t>();
  for_storage_type("decode_part", args.out.dtype(), [&](auto type) {
    using T = decltype(type);
    T* out = args.out.data<T>();
    for_runs(stream, args.part, args.out.elements(), [&](int64_t begin, int64_t n, int64_t block) {
      const float factor = factors_of(args, scales[block]).inverse;
      for (int64_t i = begin; i < begin + n; ++i) {
        const unsigned code = fp4 ? codes[i / 2] >> i % 2 * 4 & 15 : codes[i];
        out[i] = T(numbers[code] * factor);
      }
    });
  });
}

}  // namespace megatron::kernels::cpu
