#include "tensor/finite.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <vector>

#include "base/divide.h"
#include "base/error.h"

namespace megatron {
namespace {

constexpr int64_t kBlock = 1 << 16;  // elements that one thread takes at a time

// The bits of a floating-point format whose exponent is `exponent` in NaN and infinity.
template <class U, U exponent>
struct Format {
  using Bits = U;
  static constexpr U kExponent = exponent;
  static constexpr U kMinusInfinity = static_cast<U>(exponent | (U{1} << (8 * sizeof(U) - 1)));
};
using F64 = Format<uint64_t, 0x7ff0000000000000>;
using F32 = Format<uint32_t, 0x7f800000>;
using BF16 = Format<uint16_t, 0x7f80>;
using F16 = Format<uint16_t, 0x7c00>;

template <class U>
U load(const std::byte* at) {
  U bits;
  std::memcpy(&bits, at, sizeof(U));
  return bits;
}

template <class Format>
NonFinite find_in(const std::byte* data, int64_t n, int64_t stride, bool minus_infinity_is_right) {
  using U = typename Format::Bits;
  const int64_t step = stride * static_cast<int64_t>(sizeof(U));
  unsigned any = 0;
  if (stride == 1) {
    for (int64_t i = 0; i < n; ++i)
      any |= (load<U>(data + i * static_cast<int64_t>(sizeof(U))) & Format::kExponent) ==
             Format::kExponent;
  } else {
    for (int64_t i = 0; i < n; ++i)
      any |= (load<U>(data + i * step) & Format::kExponent) == Format::kExponent;
  }
  NonFinite found;
  if (any == 0) return found;
  for (int64_t i = 0; i < n; ++i) {
    const U bits = load<U>(data + i * step);
    if ((bits & Format::kExponent) != Format::kExponent) continue;
    if (minus_infinity_is_right && bits == Format::kMinusInfinity) continue;
    if (found.count++ == 0) found.first = i;
  }
  return found;
}

NonFinite find_in(DType type, const std::byte* data, int64_t n, int64_t stride, bool minus) {
  switch (type) {
    case DType::f64: return find_in<F64>(data, n, stride, minus);
    case DType::f32: return find_in<F32>(data, n, stride, minus);
    case DType::bf16: return find_in<BF16>(data, n, stride, minus);
    case DType::f16: return find_in<F16>(data, n, stride, minus);
    default: return {};
  }
}

// Rows with a constant distance between elements: a contiguous tensor split into blocks, or any
// other tensor along its last dimension.
struct Rows {
  explicit Rows(const Tensor& t) : tensor(t), contiguous(t.is_contiguous()) {
    elements = t.elements();
    length = contiguous ? std::min(elements, kBlock) : t.size(-1);
    stride = contiguous ? 1 : t.stride(-1);
    count = elements == 0 ? 0 : ceil_div(elements, length);
  }
  int64_t length_of(int64_t row) const { return std::min(length, elements - row * length); }
  const std::byte* data(int64_t row) const {
    int64_t offset = row * length;
    if (!contiguous) {
      offset = 0;
      for (int d = tensor.rank() - 2; d >= 0; --d) {
        offset += row % tensor.size(d) * tensor.stride(d);
        row /= tensor.size(d);
      }
    }
    return static_cast<const std::byte*>(tensor.raw()) + offset * size_of(tensor.dtype());
  }

  const Tensor& tensor;
  bool contiguous;
  int64_t elements, length, stride, count;
};

}  // namespace

NonFinite find_non_finite(const Tensor& tensor, bool minus_infinity_is_right, ThreadPool& pool) {
  NonFinite all;
  if (!is_floating(tensor.dtype())) return all;
  const Tensor here = on_host(tensor);
  const Rows rows(here);
  std::mutex mutex;
  const int64_t together = std::max<int64_t>(1, kBlock / std::max<int64_t>(1, rows.length));
  pool.parallel_for(ceil_div(rows.count, together), [&](int64_t block, int) {
    for (int64_t row = block * together; row < std::min(rows.count, (block + 1) * together);
         ++row) {
      const NonFinite found = find_in(tensor.dtype(), rows.data(row), rows.length_of(row),
                                      rows.stride, minus_infinity_is_right);
      if (!found) continue;
      const std::lock_guard lock(mutex);
      const int64_t first = row * rows.length + found.first;
      all.first = all ? std::min(all.first, first) : first;
      all.count += found.count;
    }
  });
  return all;
}

double largest_finite(const Tensor& tensor) {
  double largest = 0;
  const Tensor here = on_host(tensor);
  const Rows rows(here);
  for (int64_t row = 0; row < rows.count; ++row) {
    const std::byte* const begin = rows.data(row);
    const int64_t length = rows.length_of(row), step = rows.stride * size_of(tensor.dtype());
    for (int64_t i = 0; i < length; ++i) {
      const std::byte* at = begin + i * step;
      double value = 0;
      switch (tensor.dtype()) {
        case DType::f64: value = load<double>(at); break;
        case DType::f32: value = load<float>(at); break;
        case DType::bf16: value = static_cast<float>(load<bf16>(at)); break;
        case DType::f16: value = static_cast<float>(load<f16>(at)); break;
        default: return 0;
      }
      if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
    }
  }
  return largest;
}

double unsigned_nan(double value) { return std::isnan(value) ? NAN : value; }

double element_at(const Tensor& tensor, int64_t index) {
  Tensor rest = tensor;
  for (int d = tensor.rank() - 1; d >= 0; --d) {
    rest = rest.select(d, index % tensor.size(d));
    index /= tensor.size(d);
  }
  return to_doubles(rest)[0];
}

std::string place_of(const Shape& shape, int64_t index) {
  std::vector<int64_t> place(static_cast<size_t>(shape.rank()));
  for (int d = shape.rank() - 1; d >= 0; --d) {
    place[static_cast<size_t>(d)] = index % shape[d];
    index /= shape[d];
  }
  return Shape(place).str();
}

}  // namespace megatron
