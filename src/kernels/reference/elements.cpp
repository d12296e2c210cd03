#include "kernels/reference/elements.h"

#include <algorithm>
#include <type_traits>

#include "base/divide.h"
#include "base/error.h"
#include "tensor/element_types.h"

namespace megatron::kernels::reference {
namespace {

template <class To, class From>
To converted(From value) {
  if constexpr (std::is_arithmetic_v<From> && std::is_arithmetic_v<To>) {
    return static_cast<To>(value);
  } else if constexpr (std::is_arithmetic_v<To>) {
    return static_cast<To>(static_cast<float>(value));
  } else {
    return To(static_cast<float>(value));
  }
}

// Calls f(first element's offset, index of it in row-major order) for each row of the last
// dimension.
template <class F>
void for_each_row(const Tensor& t, F&& f) {
  const int outer = std::max(t.rank() - 1, 0);
  const int64_t width = t.rank() == 0 ? 1 : t.size(-1);
  const int64_t n = t.elements();
  std::array<int64_t, kMaxRank> index{};
  for (int64_t i = 0; i < n; i += width) {
    int64_t offset = 0;
    for (int d = 0; d < outer; ++d) offset += index[static_cast<size_t>(d)] * t.stride(d);
    f(offset, i);
    for (int d = outer - 1; d >= 0; --d) {
      if (++index[static_cast<size_t>(d)] < t.size(d)) break;
      index[static_cast<size_t>(d)] = 0;
    }
  }
}

template <class Stored, class C>
void load_typed(const Tensor& t, std::vector<C>& out) {
  const Stored* data = t.data<Stored>();
  const int64_t width = t.rank() == 0 ? 1 : t.size(-1), stride = t.rank() == 0 ? 1 : t.stride(-1);
  for_each_row(t, [&](int64_t offset, int64_t first) {
    C* row = out.data() + first;
    for (int64_t i = 0; i < width; ++i) row[i] = converted<C>(data[offset + i * stride]);
  });
}

template <class Stored, class C>
void store_typed(const Tensor& t, const std::vector<C>& values) {
  Stored* data = t.data<Stored>();
  const int64_t width = t.rank() == 0 ? 1 : t.size(-1), stride = t.rank() == 0 ? 1 : t.stride(-1);
  for_each_row(t, [&](int64_t offset, int64_t first) {
    const C* row = values.data() + first;
    for (int64_t i = 0; i < width; ++i) data[offset + i * stride] = converted<Stored>(row[i]);
  });
}

}  // namespace

template <class C>
std::vector<C> load(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  std::vector<C> out(static_cast<size_t>(tensor.elements()));
  if (out.empty()) return out;
  for_floating_type(tensor.dtype(),
                    [&](auto stored) { load_typed<decltype(stored)>(tensor, out); });
  return out;
}

template <class C>
void store(const Tensor& tensor, const std::vector<C>& values) {
  MG_ASSERT(static_cast<int64_t>(values.size()) == tensor.elements());
  if (values.empty()) return;
  for_floating_type(tensor.dtype(),
                    [&](auto stored) { store_typed<decltype(stored)>(tensor, values); });
}

template std::vector<float> load<float>(const Tensor&);
template std::vector<double> load<double>(const Tensor&);
template void store<float>(const Tensor&, const std::vector<float>&);
template void store<double>(const Tensor&, const std::vector<double>&);

std::vector<int64_t> load_integers(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  std::vector<int64_t> out(static_cast<size_t>(tensor.elements()));
  if (out.empty()) return out;
  for_integer_type(tensor.dtype(), [&](auto stored) { load_typed<decltype(stored)>(tensor, out); });
  return out;
}

void store_integers(const Tensor& tensor, const std::vector<int64_t>& values) {
  MG_ASSERT(static_cast<int64_t>(values.size()) == tensor.elements());
  if (values.empty()) return;
  for_integer_type(tensor.dtype(),
                   [&](auto stored) { store_typed<decltype(stored)>(tensor, values); });
}

void for_rows(Stream& stream, int64_t rows, int64_t rows_per_block, FunctionRef<void(int64_t)> f) {
  const int64_t blocks = ceil_div(rows, rows_per_block);
  stream.pool().parallel_for(blocks, [&](int64_t block, int) {
    const int64_t end = std::min(rows, (block + 1) * rows_per_block);
    for (int64_t row = block * rows_per_block; row < end; ++row) f(row);
  });
}

}  // namespace megatron::kernels::reference
