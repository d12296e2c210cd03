#include "kernels/quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/divide.h"
#include "kernels/reference/block_codes.h"
#include "kernels/reference/elements.h"
#include "kernels/reference/keep.h"
#include "kernels/reference/kernels.h"

namespace megatron::kernels::reference {
namespace {

constexpr float kLargestFloat = std::numeric_limits<float>::max();

// fmax ignores NaN.
double largest_size(const std::vector<double>& x) {
  double largest = 0;
  for (const double value : x) largest = std::fmax(largest, std::abs(value));
  return largest;
}

float number(const Tensor& t) { return *t.data<float>(); }

// What a block's scale is stored as, the factor of its values, and x times `multiplier` / `divisor`
// is rounded.
struct Scale {
  float stored = 0, factor = 1, multiplier = 1, divisor = 1;
};

Scale power_of_two_scale(LowFormat format, float amax) {
  if (amax == 0 || !std::isfinite(amax)) return {.stored = 1};
  const float quotient = std::min(facts_of(format).largest / amax, kLargestFloat);
  const float multiplier = std::ldexp(1.F, std::ilogb(quotient));
  return {.stored = 1 / multiplier, .factor = 1 / multiplier, .multiplier = multiplier};
}

Scale e8m0_scale(LowFormat format, float amax, bool up) {
  const double largest = facts_of(format).largest;
  int exponent = -127;
  if (std::isinf(amax)) {
    exponent = 127;
  } else if (amax > 0) {
    exponent = std::ilogb(amax) - std::ilogb(largest);
    if (up && static_cast<double>(amax) > std::ldexp(largest, exponent)) ++exponent;
    exponent = std::clamp(exponent, -127, 127);
  }
  return {.stored = static_cast<float>(exponent + 127),
          .factor = std::ldexp(1.F, exponent),
          .multiplier = std::ldexp(1.F, -exponent)};
}

Scale fp4_scale(float amax, float scale, bool quotient) {
  if (amax == 0) return {.factor = 0, .multiplier = 0};
  const float wanted = quotient ? amax / 6 / scale : amax * (scale * (1.F / 6));
  const uint8_t code = encode(LowFormat::e4m3, wanted);
  const float s = decode(LowFormat::e4m3, code), whole = s * (quotient ? scale : 1 / scale);
  const Scale made{.stored = static_cast<float>(code), .factor = s};
  if (s == 0) return {.stored = made.stored, .factor = 0, .multiplier = 0};
  if (quotient) return {.stored = made.stored, .factor = s, .divisor = whole};
  return {.stored = made.stored, .factor = s, .multiplier = std::min(1 / whole, kLargestFloat)};
}

Scale scale_of(const QuantizeArgs& args, float amax) {
  switch (args.rule) {
    case BlockScale::given: return {.multiplier = number(args.scale)};
    case BlockScale::power_of_two: return power_of_two_scale(args.format, amax);
    case BlockScale::e8m0: return e8m0_scale(args.format, amax, true);
    case BlockScale::e8m0_floor: return e8m0_scale(args.format, amax, false);
    case BlockScale::nvfp4: return fp4_scale(amax, number(args.scale), false);
    case BlockScale::nvfp4_quotient: return fp4_scale(amax, number(args.scale), true);
  }
  return {};
}

// Rounds to a neighbour in e2m1, up if u is less than the share of the way from the lower one.
template <class C>
uint8_t encode_by_chance(C value, C u) {
  const C size = std::abs(value);
  const uint8_t sign = std::signbit(value) ? 8 : 0;
  if (!(size < 6)) return encode(LowFormat::e2m1, value);
  uint8_t low = 0;
  while (decode(LowFormat::e2m1, low + 1) <= size) ++low;
  const C from = decode(LowFormat::e2m1, low), to = decode(LowFormat::e2m1, low + 1);
  return static_cast<uint8_t>((low + (u < (size - from) / (to - from) ? 1 : 0)) | sign);
}

template <class C>
struct Source {
  std::vector<C> x;
  int64_t rows, columns;
  std::vector<C> chances;  // u of each element if rounding is stochastic
};

template <class C>
std::vector<C> chances_of(const QuantizeArgs& args) {
  const int64_t rows = args.x.size(0), columns = args.x.size(1);
  std::vector<C> u;
  const HostRowTokens tokens(args.noise.tokens, rows);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t channel = args.channels.channel(c);
      u.push_back(static_cast<C>(noise_words(args.noise.key(), tokens.sample(r), tokens.position(r),
                                             channel / 4)[channel % 4] >>
                                 8) /
                  (1 << 24));
    }
  return u;
}

template <class C>
struct Quantized : BlockCodes {
  std::vector<C> values;
};

template <class C>
Quantized<C> quantized(const QuantizeArgs& args) {
  const Source<C> from{load<C>(args.x), args.x.size(0), args.x.size(1),
                       args.stochastic ? chances_of<C>(args) : std::vector<C>()};
  const QuantizedBlocks& to = args.out;
  Quantized<C> made;
  made.values.resize(from.x.size());
  made.codes.resize(from.x.size());
  const std::vector<float> given = load<float>(args.maxima);
  for (int64_t i = 0; i < from.rows; i += to.rows) {
    for (int64_t j = 0; j < from.columns; j += to.columns) {
      const auto for_block = [&](auto f) {
        for (int64_t r = i; r < std::min(i + to.rows, from.rows); ++r)
          for (int64_t c = j; c < std::min(j + to.columns, from.columns); ++c)
            f(static_cast<size_t>(r * from.columns + c));
      };
      double amax = 0;
      for_block(
          [&](size_t e) { amax = std::fmax(amax, std::abs(static_cast<double>(from.x[e]))); });
      if (args.maxima.defined()) amax = given[made.scales.size()];
      const Scale scale = scale_of(args, static_cast<float>(amax));
      made.scales.push_back(scale.stored);
      for_block([&](size_t e) {
        const C x = from.x[e] * scale.multiplier / scale.divisor;
        const uint8_t code =
            args.stochastic ? encode_by_chance(x, from.chances[e]) : encode(args.format, x);
        made.codes[e] = code;
        made.values[e] =
            std::isnan(x) ? x : static_cast<C>(decode(args.format, code)) * scale.factor;
      });
    }
  }
  return made;
}

template <class C>
void quantize_typed(const QuantizeArgs& args) {
  const QuantizedBlocks& to = args.out;
  const Quantized<C> made = quantized<C>(args);
  if (to.values.defined()) store(to.values, made.values);
  if (to.codes.defined()) store_integers(to.codes, made.codes);
  if (!to.scales.defined()) return;
  if (to.scales.dtype() == DType::f32) return store(to.scales, made.scales);
  store_integers(to.scales, std::vector<int64_t>(made.scales.begin(), made.scales.end()));
}

template <class C>
void rotate(const HadamardArgs& args) {
  const std::vector<C> x = load<C>(args.x);
  std::vector<C> out = x;
  const int64_t columns = args.x.size(1);
  for_each_row_group(args.row_groups, args.x.size(0), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < begin + (end - begin) / kHadamardRows * kHadamardRows; ++r) {
      const int64_t first = begin + (r - begin) / kHadamardRows * kHadamardRows;
      const auto j = static_cast<uint32_t>(r - first);
      for (int64_t c = 0; c < columns; ++c) {
        C sum = 0;
        for (uint32_t i = 0; i < kHadamardRows; ++i) {
          const bool minus = (std::popcount(i & j) + (kHadamardMinus >> i & 1)) % 2 != 0;
          const C value = x[(first + i) * columns + c];
          sum += minus ? -value : value;
        }
        out[r * columns + c] = sum / 4;
      }
    }
  });
  store(args.out, out);
}

}  // namespace

BlockCodes block_codes(const QuantizeArgs& args) { return quantized<float>(args); }

void amax(const AmaxArgs& args, Stream&) {
  double largest = largest_size(load<double>(args.x));
  float* out = args.out.out.data<float>();
  if (args.out.beta != 0) largest = std::fmax(largest, *out);
  *out = static_cast<float>(largest);
}

void tensor_scale(const TensorScaleArgs& args, Stream&) {
  const float amax = number(args.amax);
  std::vector<double> history = load<double>(args.history);
  const float a =
      args.use_history ? std::fmax(amax, static_cast<float>(largest_size(history))) : amax;
  float* scale = args.scale.data<float>();
  if (a > 0 && std::isfinite(a)) {
    *scale =
        std::min(std::ldexp(static_cast<float>(args.largest) / a, -args.margin), kLargestFloat);
  } else if (!args.delayed) {
    *scale = 1;
  }
  if (history.empty()) return;
  history.erase(history.begin());
  history.push_back(amax);
  store(args.history, history);
}

void quantize(const QuantizeArgs& args, Stream&) {
  for_each_row_group(args, [](const QuantizeArgs& part) {
    part.x.dtype() == DType::f64 ? quantize_typed<double>(part) : quantize_typed<float>(part);
  });
}

void hadamard(const HadamardArgs& args, Stream&) {
  args.x.dtype() == DType::f64 ? rotate<double>(args) : rotate<float>(args);
}

}  // namespace megatron::kernels::reference
