#include "kernels/cpu/attention/pack.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention/pack.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megatron::kernels::cpu {
namespace HWY_NAMESPACE {

template <class T>
void unpack(const HeadRows& rows, int64_t begin, int64_t count, const float* values, int64_t stride,
            const float* factors) {
  const V zero = hn::Zero(kFloats);
  for (int64_t i = 0; i < count; ++i, values += stride) {
    T* to = reinterpret_cast<T*>(rows.row(begin + i));
    const V factor = set(factors == nullptr ? 1.0f : factors[i]);
    for_vectors(0, rows.width, [&](int64_t d, auto n) {
      store(hn::Add(hn::Mul(load(values + d, n), factor), zero), to + d, n);
    });
  }
}

void unpack_any(const HeadRows& rows, int64_t begin, int64_t count, const float* values,
                int64_t stride, const float* factors) {
  if (rows.type == DType::f32) return unpack<float>(rows, begin, count, values, stride, factors);
  unpack<bf16>(rows, begin, count, values, stride, factors);
}

template <class T>
void add(const HeadRows& rows, int64_t begin, int64_t count, const float* values, int64_t stride) {
  for (int64_t i = 0; i < count; ++i, values += stride) {
    T* to = reinterpret_cast<T*>(rows.row(begin + i));
    for_vectors(0, rows.width, [&](int64_t d, auto n) {
      store(hn::Add(load(to + d, n), load(values + d, n)), to + d, n);
    });
  }
}

void add_any(const HeadRows& rows, int64_t begin, int64_t count, const float* values,
             int64_t stride) {
  if (rows.type == DType::f32) return add<float>(rows, begin, count, values, stride);
  add<bf16>(rows, begin, count, values, stride);
}

template <class T>
void products(const HeadRows& a, const HeadRows& b, int64_t begin, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    const T* left = reinterpret_cast<const T*>(a.row(begin + i));
    const T* right = reinterpret_cast<const T*>(b.row(begin + i));
    out[i] = sum_of(
        a.width, [&](int64_t d, auto n) { return hn::Mul(load(left + d, n), load(right + d, n)); });
  }
}

void products_any(const HeadRows& a, const HeadRows& b, int64_t begin, int64_t count, float* out) {
  if (a.type == DType::f32) return products<float>(a, b, begin, count, out);
  products<bf16>(a, b, begin, count, out);
}

}  // namespace HWY_NAMESPACE
}  // namespace megatron::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megatron::kernels::cpu {

HWY_EXPORT(unpack_any);
HWY_EXPORT(add_any);
HWY_EXPORT(products_any);

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

KeyRows::KeyRows(const Tensor& tensor, const Tensor& block_table, int64_t sample, int64_t key_head)
    : base_(static_cast<std::byte*>(tensor.raw())),
      table_(nullptr),
      page_(std::numeric_limits<int64_t>::max()),
      page_stride_(tensor.stride(0)),
      stride_(tensor.stride(1)),
      type_(tensor.dtype()) {
  int64_t offset = key_head * tensor.stride(2);
  if (block_table.defined()) {
    table_ = block_table.data<int32_t>() + sample * block_table.size(1);
    page_ = tensor.size(1);
  } else {
    offset += sample * page_stride_;
  }
  base_ += offset * size_of(type_);
}

void prefetch_rows(const HeadRows& rows, int64_t begin, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const std::byte* row = rows.row(begin + i);
    for (int64_t at = 0; at < rows.width * rows.element_size; at += 64)
      __builtin_prefetch(row + at, 0, 2);
  }
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
      out[width - 1] = 0;  // pairs with an odd last element
      std::memcpy(out, from, static_cast<size_t>(rows.width * rows.element_size));
    }
  }
  std::fill_n(out, (padded - count) * width, 0u);
}

void unpack_rows(const HeadRows& rows, int64_t begin, int64_t count, const float* values,
                 int64_t stride, const float* factors) {
  HWY_DYNAMIC_DISPATCH(unpack_any)(rows, begin, count, values, stride, factors);
}

void add_rows(const HeadRows& rows, int64_t begin, int64_t count, const float* values,
              int64_t stride) {
  HWY_DYNAMIC_DISPATCH(add_any)(rows, begin, count, values, stride);
}

void row_products(const HeadRows& a, const HeadRows& b, int64_t begin, int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(products_any)(a, b, begin, count, out);
}

}  // namespace megatron::kernels::cpu
#endif
