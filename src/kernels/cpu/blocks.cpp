#include "kernels/cpu/blocks.h"

#include "base/error.h"
#include "hwy/cache_control.h"
#include "kernels/cpu/rows_ahead.h"

namespace megatron::kernels::cpu {

RowBlocks::RowBlocks(int64_t rows_, int64_t most)
    : rows(rows_),
      height(std::max<int64_t>(32, ceil_div(rows_, most))),
      count(ceil_div(rows_, height)) {}

bool passes_caches(const Tensor& out, std::initializer_list<const void*> inputs) {
  return out.bytes() >= kStreamedBytes && std::ranges::find(inputs, out.raw()) == inputs.end();
}

bool is_streamed(const Tensor& out, int64_t step, std::initializer_list<const void*> inputs) {
  return passes_caches(out, inputs) && reinterpret_cast<uintptr_t>(out.raw()) % kCacheLine == 0 &&
         step * size_of(out.dtype()) % kCacheLine == 0;
}

void finish_streamed_stores() { hwy::FlushStream(); }

Tensor partial_rows(const RowBlocks& blocks, int64_t width, Stream& stream) {
  return Tensor::empty(stream.scratch(), {blocks.count, width}, DType::f32, "partial sums of rows");
}

void add_partial_rows(const Tensor& partials, const Accumulate& to, Stream& stream) {
  const int64_t count = partials.size(0), width = partials.size(1);
  const float* source = partials.data<float>();
  float* out = to.out.data<float>();
  const bool accumulate = to.beta != 0;
  if (width == 0) return;
  // Each thread gets the same number of row segments, as long as possible, since the hardware
  // prefetcher cannot predict short ones.
  constexpr int64_t kMaxColumns = 1024, kStep = 64, kBytesAhead = 3072;
  const int64_t share = ceil_div(width, stream.pool().size());
  const int64_t pieces = ceil_div(share, kMaxColumns);
  const int64_t columns = ceil_div(ceil_div(share, pieces), kStep) * kStep;
  const int64_t rows_ahead = ceil_div(kBytesAhead, columns * 4);
  for_blocks(stream, width, columns, [&](int64_t begin, int64_t end) {
    float sums[kMaxColumns] = {};
    const int64_t n = end - begin;
    for (int64_t block = 0; block < count; ++block) {
      const float* row = source + block * width + begin;
      prefetch(row + rows_ahead * width, n * 4);
      for (int64_t i = 0; i < n; ++i) sums[i] += row[i];
    }
    for (int64_t i = 0; i < n; ++i)
      out[begin + i] = accumulate ? sums[i] + out[begin + i] : sums[i];
  });
}

void refuse_type(const char* kernel, DType type) {
  fail(
      "{}: the cpu back-end supports f32 and bf16, not {}; use --device reference for other "
      "types",
      kernel, name(type));
}

}  // namespace megatron::kernels::cpu
