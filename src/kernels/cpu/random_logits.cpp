#include <algorithm>
#include <cmath>

#include "base/philox.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"

namespace megatron::kernels::cpu {
namespace {

using Of = RandomLogitsArgs::Of;

// Approximately normal random number with mean 0 and variance 1.
double bell(PhiloxCounter counter, PhiloxKey key) {
  uint64_t sum = 0;
  for (const uint32_t word : philox(counter, key)) sum += word;
  return std::sqrt(3.0) * (static_cast<double>(sum) / 4294967296.0 - 2);
}

template <class C>
void fill_logits(const RandomLogitsArgs& args, Stream& stream) {
  const NoiseRows& noise = args.rows;
  const int64_t rows = args.out.size(0), experts = args.out.size(1);
  const int64_t length = noise.length_of(rows);
  const PhiloxKey key = {static_cast<uint32_t>(noise.key()),
                         static_cast<uint32_t>(noise.key() >> 32)};
  for_blocks(stream, rows, rows_per_block(32 * experts), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t of_all = noise.first_row + row;
      const auto sample = static_cast<uint64_t>(
          args.of == Of::all ? 0 : noise.sample_ids.data<int64_t>()[of_all / length]);
      const int64_t position = args.of == Of::token ? of_all % length : 0;
      for (int64_t e = 0; e < experts; ++e) {
        const int64_t i = row * experts + e;
        const double x = args.x.defined() ? static_cast<double>(args.x.data<C>()[i]) : 0;
        const double g = bell({static_cast<uint32_t>(e), static_cast<uint32_t>(position),
                               static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32)},
                              key);
        args.out.data<C>()[i] = static_cast<C>(x + args.scale * g);
      }
    }
  });
}

}  // namespace

void random_logits(const RandomLogitsArgs& args, Stream& stream) {
  args.out.dtype() == DType::f64 ? fill_logits<double>(args, stream)
                                 : fill_logits<float>(args, stream);
}

}  // namespace megatron::kernels::cpu
