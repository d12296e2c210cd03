#include <cmath>

#include "kernels/reference/elements.h"
#include "kernels/reference/keep.h"
#include "kernels/reference/kernels.h"

namespace megatron::kernels::reference {
namespace {

template <class C>
void jitter_typed(const JitterArgs& args) {
  std::vector<C> x = load<C>(args.x);
  const int64_t rows = args.x.size(0), channels = args.x.size(1);
  const HostRowTokens tokens(args.rows.tokens, rows);
  const uint64_t key = args.rows.key();
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < channels; ++i) {
      const uint32_t word =
          noise_words(key, tokens.sample(row), tokens.position(row), i / 4)[i % 4];
      const C u = static_cast<C>(word >> 8) / static_cast<C>(1 << 24);
      x[row * channels + i] *= 1 + static_cast<C>(args.width) * (2 * u - 1);
    }
  }
  store(args.out, x);
}

}  // namespace

void jitter(const JitterArgs& args, Stream&) {
  args.x.dtype() == DType::f64 ? jitter_typed<double>(args) : jitter_typed<float>(args);
}

void random_logits(const RandomLogitsArgs& args, Stream&) {
  using Of = RandomLogitsArgs::Of;
  const int64_t rows = args.out.size(0), experts = args.out.size(1);
  const HostRowTokens tokens(args.rows.tokens, rows);
  std::vector<double> out = load<double>(args.x);
  out.resize(static_cast<size_t>(rows * experts));
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t sample = args.of == Of::all ? 0 : tokens.sample(row),
                  position = args.of == Of::token ? tokens.position(row) : 0;
    for (int64_t e = 0; e < experts; ++e) {
      double sum = 0;
      for (const uint32_t word : noise_words(args.rows.key(), sample, position, e)) sum += word;
      out[row * experts + e] += args.scale * (std::sqrt(3.0) * (sum / 4294967296.0 - 2));
    }
  }
  store(args.out, out);
}

}  // namespace megatron::kernels::reference
