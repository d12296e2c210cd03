// Adam's moments in 8 bits, for the reference, CPUs and GPUs.
//
// exp_avg_sq v is kept as its root s: 0, or 2^e (1 + f / 4) for e in [-48, 15] and two bits f, of
// which 2^-48 itself is 0's code. exp_avg m is kept as 16 m / s in e4m3, with the root as it is
// stored. By the inequality of Cauchy and Schwarz
//   |m| / s <= (1 - b1) / sqrt((1 - b2) (1 - b1^2 / b2)), 7.3 for the defaults (0.9, 0.999),
// so that neither needs a scale of the tensor or of a block, and an element's codes depend on that
// element alone. Moments that are not finite become the largest numbers, but for an m that is NaN:
// a step that has some is not applied, unless the run asks for it.
//
// Both are rounded by chance (Gupta et al., arXiv 1502.02551): b2 = 0.999 changes s by about half a
// thousandth, and codes are a fifth apart, so that rounding to nearest would keep s where it is in
// the first steps. Here the chance is one number for all elements of a step, of the sequence of
// Roberts (2018, "The unreasonable effectiveness of quasirandom sequences"), which covers [0, 1)
// evenly: an element is rounded up in the right share of the steps, in every layout alike.
#pragma once

#include <bit>
#include <cstdint>

namespace megatron::kernels {

// What a step adds below the last bit that is kept, before the bits after it are dropped.
struct MomentDither {
  static constexpr int kRootBits = 21, kRatioBits = 20;  // dropped
  uint32_t root, ratio;

  // step: counts from 1.
  static constexpr MomentDither of(double step) {
    const auto t = static_cast<uint32_t>(step);
    return {(t * 0xc13fa9a9U) >> (32 - kRootBits), (t * 0x91e10da5U) >> (32 - kRatioBits)};
  }
};

// Upper bits of an f32 less the code of a root, and of a normal ratio.
inline constexpr int kRootBias = (127 - 48) << 2, kRatioBias = (127 - 7) << 3;
inline constexpr float kRatioScale = 16, kLargestRatio = 448, kSmallestNormalRatio = 0x1p-6F;
inline constexpr uint32_t kRatioNan = 0x7f, kLargestRatioCode = 0x7e;

constexpr float root_of(uint32_t code) {
  return code == 0 ? 0 : std::bit_cast<float>((code + kRootBias) << MomentDither::kRootBits);
}
// Roots out of range become the smallest or the largest one, so that v > 0 stays positive.
constexpr uint32_t root_code(float root, MomentDither dither) {
  if (root == 0) return 0;
  const uint32_t bits = (std::bit_cast<uint32_t>(root) + dither.root) >> MomentDither::kRootBits;
  const int code = static_cast<int>(bits) - kRootBias;
  return static_cast<uint32_t>(code < 1 ? 1 : code > 255 ? 255 : code);
}

// m / s of an e4m3 code.
constexpr float ratio_of(uint32_t code) {
  const uint32_t size = code & 0x7f;
  float ratio = std::bit_cast<float>((size + kRatioBias) << MomentDither::kRatioBits);
  if (size < 8) ratio = static_cast<float>(size) * 0x1p-9F;
  if (size == kRatioNan) ratio = std::bit_cast<float>(0x7fc00000U);
  return ((code & 0x80) != 0 ? -ratio : ratio) / kRatioScale;
}
// The code of m / s; larger ones become the largest, and s = 0 gives 0.
constexpr uint32_t ratio_code(float m, float s, MomentDither dither) {
  if (m != m) return kRatioNan;
  if (s == 0) return 0;
  const float ratio = m / s * kRatioScale, size = ratio < 0 ? -ratio : ratio;
  const uint32_t sign = ratio < 0 ? 0x80 : 0;
  // Subnormal codes: spaced by 2^-9. The dither adds a fraction of that spacing before truncation.
  if (size < kSmallestNormalRatio)
    return sign |
           static_cast<uint32_t>(size * 0x1p9F + static_cast<float>(dither.ratio) * 0x1p-20F);
  const float most = size < kLargestRatio ? size : kLargestRatio;
  const uint32_t code =
      ((std::bit_cast<uint32_t>(most) + dither.ratio) >> MomentDither::kRatioBits) - kRatioBias;
  return sign | (code < kLargestRatioCode ? code : kLargestRatioCode);
}

}  // namespace megatron::kernels
