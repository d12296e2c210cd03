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

template <class C>
void encode_typed(const EncodePartArgs& args) {
  const std::vector<C> x = load<C>(args.x);
  const std::vector<float> multiplier = multipliers(args.format, args.part, args.scales);
  std::vector<int64_t> codes;
  for (size_t i = 0; i < x.size(); ++i)
    codes.push_back(
        encode(args.format,
               x[i] * multiplier[static_cast<size_t>(args.part.block(static_cast<int64_t>(i)))]));
  store_integers(args.codes, codes);
}

template <class C>
void decode_typed(const DecodePartArgs& args) {
  const std::vector<int64_t> codes = load_integers(args.codes);
  const std::vector<float> multiplier = multipliers(args.format, args.part, args.scales);
  std::vector<C> out;
  for (size_t i = 0; i < codes.size(); ++i) {
    const float factor =
        1 / multiplier[static_cast<size_t>(args.part.block(static_cast<int64_t>(i)))];
    out.push_back(static_cast<C>(decode(args.format, static_cast<uint8_t>(codes[i]))) * factor);
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
