#include "kernels/cpu/dropout.h"

#include <cmath>

#include "kernels/check.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/dropout.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

template <class T>
void dropout_row(const T* x, T* out, int64_t width, uint32_t position, uint64_t sample,
                 uint64_t key, uint32_t threshold, float scale) {
  const auto least = hn::Set(Words(), threshold);
  const auto drop = [&](int64_t i, auto words, auto n) {
    const auto dropped = hn::RebindMask(kFloats, hn::Lt(words, least));
    store(hn::IfThenZeroElse(dropped, hn::Mul(load(x + i, n), set(scale))), out + i, n);
  };
  int64_t i = 0;
  for (; i + 2 * kLanes <= width; i += 2 * kLanes) {
    const PhiloxWords words = philox_words(static_cast<uint32_t>(i / 4), position, sample, key);
    drop(i, words.first, Whole{});
    drop(i + kLanes, words.second, Whole{});
  }
  if (i < width) {
    const PhiloxWords words = philox_words(static_cast<uint32_t>(i / 4), position, sample, key);
    drop(i, words.first, Part{std::min(kLanes, width - i)});
    if (i + kLanes < width) drop(i + kLanes, words.second, Part{width - i - kLanes});
  }
}

void dropout_rows(const DropoutArgs& args, Stream& stream) {
  const int64_t rows = args.x.size(0), width = args.x.size(1);
  const DropoutArgs::Mask& mask = args.mask;
  for_storage_type("dropout", args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const T* x = args.x.data<T>();
    T* out = args.out.data<T>();
    if (mask.p == 0) {
      for_blocks(stream, rows * width, kBlockElements, [&](int64_t begin, int64_t end) {
        std::memmove(out + begin, x + begin, static_cast<size_t>(end - begin) * sizeof(T));
      });
      return;
    }
    const int64_t positions = rows / std::max<int64_t>(1, mask.samples.elements());
    const int64_t* samples = mask.samples.data<int64_t>();
    const uint64_t key = mask.seed * 0x9E3779B97F4A7C15ull ^ mask.stream;
    const auto threshold =
        static_cast<uint32_t>(std::ceil(static_cast<double>(mask.p) * 4294967296.0));
    const float scale = 1.0f / (1.0f - mask.p);
    for_blocks(stream, rows, rows_per_block(width), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        dropout_row(x + row * width, out + row * width, width,
                    static_cast<uint32_t>(row % positions),
                    static_cast<uint64_t>(samples[row / positions]), key, threshold, scale);
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
  check(args);
  HWY_DYNAMIC_DISPATCH(dropout_rows)(args, stream);
}

}  // namespace megatron::kernels::cpu
#endif
