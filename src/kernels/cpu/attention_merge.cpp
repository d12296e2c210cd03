#include <cmath>
#include <limits>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_merge.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

// out = of_out * out + of_part * part.
template <class T>
void merge_row(const T* part, float* out, int64_t width, float of_out, float of_part) {
  for_pairs(0, width, [&](int64_t i, auto n) {
    const VectorPair a = load_pair_for<T>(out + i, n), b = load_pair(part + i, n);
    store_pair_for<T>({hn::MulAdd(a.a, set(of_out), hn::Mul(b.a, set(of_part))),
                       hn::MulAdd(a.b, set(of_out), hn::Mul(b.b, set(of_part)))},
                      out + i, n);
  });
}

void merge_rows(const AttentionMergeArgs& args, Stream& stream) {
  const int64_t length = args.out.size(1), heads = args.out.size(2), width = args.out.size(3);
  for_storage_type("attention_merge", args.part.dtype(), [&](auto type) {
    using T = decltype(type);
    const T* part = args.part.data<T>();
    const float *a = args.lse.data<float>(), *b = args.part_lse.data<float>();
    float *out = args.out.data<float>(), *merged = args.merged_lse.data<float>();
    for_blocks(stream, args.lse.elements(), rows_per_block(width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t head = row % heads, token = row / heads, sample = token / length;
        const int64_t at = (sample * heads + head) * length + token % length;
        const float most = std::max(a[at], b[at]);
        merged[at] = most;
        float of_out = 0, of_part = 0;
        if (most != -std::numeric_limits<float>::infinity()) {
          merged[at] = most + std::log(std::exp(a[at] - most) + std::exp(b[at] - most));
          of_out = std::exp(a[at] - merged[at]);
          of_part = std::exp(b[at] - merged[at]);
        }
        merge_row(part + row * width, out + row * width, width, of_out, of_part);
      }
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {

HWY_EXPORT(merge_rows);

void attention_merge(const AttentionMergeArgs& args, Stream& stream) {
  HWY_DYNAMIC_DISPATCH(merge_rows)(args, stream);
}

}  // namespace megatron::kernels::cpu
#endif
