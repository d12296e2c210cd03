#include "kernels/matrix_codes.h"

#include <cmath>
#include <limits>

#include "kernels/reference/elements.h"
#include "kernels/reference/kernels.h"

namespace megatron::kernels::reference {
namespace {

// Multiplier of each block.
std::vector<float> multipliers(LowFormat format, const MatrixPart& part, const Tensor& scales) {
  std::vector<float> all = load<float>(scales);
  if (part.edge == 0) return all;
  for (float& scale : all) {
    const float quotient =
        std::min(facts_of(format).largest / scale, std::numeric_limits<float>::max());
    scale = scale == 0 || !std::isfinite(scale) ? 1 : std::ldexp(1.F, std::ilogb(quotient));
  }
  return all;
}

// e2m1: s / scale of each block, s its scale in e4m3.
std::vector<float> factors(const Tensor& scales, const Tensor& scale) {
  std::vector<float> all = load<float>(scales);
  const float whole = *scale.data<float>();
  for (float& most : all)
    most =
        decode(LowFormat::e4m3, encode(LowFormat::e4m3, most * (whole * (1.F / 6)))) * (1 / whole);
  return all;
}

template <class C>
void encode_typed(const EncodePartArgs& args) {
  const bool fp4 = args.format == LowFormat::e2m1;
  const std::vector<C> x = load<C>(args.x);
  std::vector<float> multiplier =
      fp4 ? factors(args.scales, args.scale) : multipliers(args.format, args.part, args.scales);
  for (float& m : multiplier)
    if (fp4 && m != 0) m = std::min(1 / m, std::numeric_limits<float>::max());
  std::vector<int64_t> codes(static_cast<size_t>(args.codes.elements()));
  for (size_t i = 0; i < x.size(); ++i) {
    const auto block = static_cast<size_t>(args.part.block(static_cast<int64_t>(i)));
    const int64_t code = encode(args.format, x[i] * multiplier[block]);
    if (fp4) codes[i / 2] += i % 2 == 0 ? code : code * 16;
    else codes[i] = code;
  }
  store_integers(args.codes, codes);
}

template <class C>
void decode_typed(const DecodePartArgs& args) {
  const bool fp4 = args.format == LowFormat::e2m1;
  const std::vector<int64_t> codes = load_integers(args.codes);
  std::vector<float> factor =
      fp4 ? factors(args.scales, args.scale) : multipliers(args.format, args.part, args.scales);
  for (float& f : factor)
    if (!fp4) f = 1 / f;
  std::vector<C> out;
  for (int64_t i = 0; i < args.out.elements(); ++i) {
    const int64_t byte = codes[static_cast<size_t>(fp4 ? i / 2 : i)];
    const int64_t code = !fp4 ? byte : i % 2 == 0 ? byte % 16 : byte / 16;
    out.push_back(static_cast<C>(decode(args.format, static_cast<uint8_t>(code))) *
                  factor[static_cast<size_t>(args.part.block(i))]);
  }
  store(args.out, out);
}

}  // namespace

void part_amax(const PartAmaxArgs& args, Stream&) {
  const std::vector<double> x = load<double>(args.x);
  float* maxima = args.maxima.data<float>();
  for (size_t i = 0; i < x.size(); ++i) {
    float& most = maxima[args.part.block(static_cast<int64_t>(i))];
    most = static_cast<float>(std::fmax(most, std::abs(x[i])));
  }
}

void encode_part(const EncodePartArgs& args, Stream&) {
  args.x.dtype() == DType::f64 ? encode_typed<double>(args) : encode_typed<float>(args);
}

void decode_part(const DecodePartArgs& args, Stream&) {
  args.out.dtype() == DType::f64 ? decode_typed<double>(args) : decode_typed<float>(args);
}

}  // namespace megatron::kernels::reference
