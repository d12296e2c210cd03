#include <cmath>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/rows_ahead.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/table.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/dropout.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

template <class T>
void dropout_row(const T* x, Output<T> out, int64_t width, const PhiloxRow& random,
                 int64_t first_channel, uint32_t threshold, float scale) {
  constexpr size_t kTogether = 4;
  constexpr int64_t kTwo = 2 * kLanes, kStep = kTogether * kTwo;
  const auto drop = [&](V v, auto words) {
    const auto dropped = hn::RebindMask(kFloats, hn::Lt(words, hn::Set(Words(), threshold)));
    return hn::IfThenZeroElse(dropped, hn::Mul(v, set(scale)));
  };
  const auto drop_two = [&](int64_t i, const PhiloxWords& words, auto n) {
    const VectorPair v = load_pair(x + i, n);
    store_pair({drop(v.a, words.first), drop(v.b, words.second)}, out + i, n);
  };
  int64_t i = 0;
  for (; i + kStep <= width; i += kStep) {
    prefetch(x + i + kElementsAhead<T>, kStep * static_cast<int64_t>(sizeof(T)));
    const auto words = words_of_twos<T, kTogether>(random, first_channel + i);
    for (size_t k = 0; k < kTogether; ++k)
      drop_two(i + static_cast<int64_t>(k) * kTwo, words[k], Whole{});
  }
  for_pairs(i, width, [&](int64_t at, auto n) {
    drop_two(at, words_of_twos<T, 1>(random, first_channel + at)[0], n);
  });
}

void dropout_rows(const DropoutArgs& args, Stream& stream) {
  const int64_t rows = args.x.size(0), width = args.x.size(1);
  const DropoutArgs::Mask& mask = args.mask;
  for_storage_type("dropout", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const T* x = args.x.data<T>();
    if (mask.p == 0) {
      T* out = args.out.data<T>();
      for_blocks(stream, rows * width, kBlockElements, [&](int64_t begin, int64_t end) {
        std::memmove(out + begin, x + begin, static_cast<size_t>(end - begin) * sizeof(T));
      });
      return;
    }
    const Output<T> out = output_of<T>(args.out, width, {x});
    const HostRowTokens tokens(mask.rows, rows);
    const uint64_t key = philox_key(mask.seed, mask.stream);
    const auto threshold =
        static_cast<uint32_t>(std::ceil(static_cast<double>(mask.p) * 4294967296.0));
    const float scale = 1.0f / (1.0f - mask.p);
    for_blocks(stream, rows, rows_per_block(width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const PhiloxRow random(tokens.position(row), static_cast<uint64_t>(tokens.sample(row)),
                               key);
        dropout_row(x + row * width, out + row * width, width, random, mask.first_channel,
                    threshold, scale);
      }
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {

HWY_EXPORT(dropout_rows);

void dropout(const DropoutArgs& args, Stream& stream) {
  HWY_DYNAMIC_DISPATCH(dropout_rows)(args, stream);
}

}  // namespace megatron::kernels::cpu
#endif
