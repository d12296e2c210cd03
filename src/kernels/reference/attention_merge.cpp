#include "kernels/attention_merge.h"

#include <cmath>
#include <limits>

#include "kernels/reference/elements.h"
#include "kernels/reference/kernels.h"

namespace megatron::kernels::reference {
namespace {

template <class C>
void merge(const AttentionMergeArgs& args) {
  const int64_t batch = args.out.size(0), length = args.out.size(1), heads = args.out.size(2),
                size = args.out.size(3);
  const std::vector<C> part = load<C>(args.part), a = load<C>(args.lse), b = load<C>(args.part_lse);
  std::vector<C> out = load<C>(args.out), merged(a.size());
  for (int64_t s = 0; s < batch; ++s) {
    for (int64_t t = 0; t < length; ++t) {
      for (int64_t n = 0; n < heads; ++n) {
        const int64_t row = (s * heads + n) * length + t,
                      at = ((s * length + t) * heads + n) * size;
        const C most = std::max(a[row], b[row]);
        merged[row] = most;
        C of_out = 0, of_part = 0;
        if (most != -std::numeric_limits<C>::infinity()) {
          merged[row] = most + std::log(std::exp(a[row] - most) + std::exp(b[row] - most));
          of_out = std::exp(a[row] - merged[row]);
          of_part = std::exp(b[row] - merged[row]);
        }
        for (int64_t d = 0; d < size; ++d)
          out[at + d] = of_out * out[at + d] + of_part * part[at + d];
      }
    }
  }
  store(args.out, out);
  store(args.merged_lse, merged);
}

}  // namespace

void attention_merge(const AttentionMergeArgs& args, Stream&) {
  args.out.dtype() == DType::f64 ? merge<double>(args) : merge<float>(args);
}

}  // namespace megatron::kernels::reference
