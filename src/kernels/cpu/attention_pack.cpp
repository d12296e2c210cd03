#include "kernels/cpu/attention_pack.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace megatron::kernels::cpu {

HeadRows::HeadRows(const Tensor& tensor, int64_t sample, int64_t key_head, int64_t heads)
    : position_stride(tensor.stride(1)),
      head_stride(tensor.stride(2)),
      group(heads),
      width(tensor.size(3)),
      element_size(size_of(tensor.dtype())),
      type(tensor.dtype()) {
  base = static_cast<std::byte*>(tensor.raw()) +
         (sample * tensor.stride(0) + key_head * group * head_stride) * element_size;
}

void pack_rows(const HeadRows& rows, int64_t begin, int64_t count, int64_t padded, WordKind kind,
               uint32_t* out) {
  const int64_t width = words(kind, rows.width);
  for (int64_t i = 0; i < count; ++i, out += width) {
    const std::byte* from = rows.row(begin + i);
    if (rows.type == DType::bf16 && kind == WordKind::f32) {
      uint16_t half;
      for (int64_t d = 0; d < width; ++d) {
        std::memcpy(&half, from + 2 * d, 2);
        out[d] = static_cast<uint32_t>(half) << 16;
      }
    } else {
      out[width - 1] = 0;  // the partner of an odd last element
      std::memcpy(out, from, static_cast<size_t>(rows.width * rows.element_size));
    }
  }
  std::fill_n(out, (padded - count) * width, 0u);
}

namespace {

template <class T>
float load_as_float(const std::byte* p, int64_t i) {
  return static_cast<float>(reinterpret_cast<const T*>(p)[i]);
}

template <class T>
void unpack(const HeadRows& rows, int64_t begin, int64_t count, const float* values, int64_t stride,
            const float* factors) {
  for (int64_t i = 0; i < count; ++i) {
    T* to = reinterpret_cast<T*>(rows.row(begin + i));
    const float factor = factors == nullptr ? 1.0f : factors[i];
    for (int64_t d = 0; d < rows.width; ++d) to[d] = T(values[i * stride + d] * factor + 0.0f);
  }
}

// Sixteen sums by d % 16, so that the loop is vectors on any instruction set and the order is one.
template <class T>
float dot(const std::byte* a, const std::byte* b, int64_t n) {
  constexpr int64_t kSums = 16;
  float sums[kSums] = {};
  int64_t d = 0;
  for (; d + kSums <= n; d += kSums) {
    for (int64_t l = 0; l < kSums; ++l)
      sums[l] += load_as_float<T>(a, d + l) * load_as_float<T>(b, d + l);
  }
  for (int64_t l = 0; d + l < n; ++l)
    sums[l] += load_as_float<T>(a, d + l) * load_as_float<T>(b, d + l);
  for (int64_t half = kSums / 2; half > 0; half /= 2) {
    for (int64_t l = 0; l < half; ++l) sums[l] += sums[l + half];
  }
  return sums[0];
}

}  // namespace

void unpack_rows(const HeadRows& rows, int64_t begin, int64_t count, const float* values,
                 int64_t stride, const float* factors) {
  if (rows.type == DType::f32) return unpack<float>(rows, begin, count, values, stride, factors);
  unpack<bf16>(rows, begin, count, values, stride, factors);
}

float row_product(const HeadRows& a, const HeadRows& b, int64_t r) {
  return a.type == DType::f32 ? dot<float>(a.row(r), b.row(r), a.width)
                              : dot<bf16>(a.row(r), b.row(r), a.width);
}

}  // namespace megatron::kernels::cpu
