#include "kernels/cases/inputs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/divide.h"
#include "base/error.h"
#include "base/philox.h"

namespace megatron::kernels {
namespace {

constexpr uint64_t kSeed = 20260807;
constexpr int64_t kGuard = 5;
constexpr double kGuardValue = 1;

float about_normal(const RandomStream& stream, int64_t i) {
  const uint64_t bits = stream.bits(static_cast<uint64_t>(i));
  int64_t sum = -2 * 65535;
  for (int shift = 0; shift < 64; shift += 16) sum += static_cast<int64_t>(bits >> shift & 0xffff);
  return static_cast<float>(static_cast<double>(sum) /
                            37836.9);  // standard deviation of the sum: 65536 / sqrt(3)
}

void set_all(Tensor tensor, double value) {
  copy_from(tensor, std::vector<double>(static_cast<size_t>(tensor.elements()), value));
}

template <class F>
void set_each(Runtime& runtime, Tensor& tensor, F&& value) {
  constexpr int64_t kBlock = 1 << 16;
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  const int64_t n = tensor.elements();
  runtime.pool().parallel_for(ceil_div(n, kBlock), [&](int64_t block, int) {
    for (int64_t i = block * kBlock; i < std::min(n, (block + 1) * kBlock); ++i)
      values[static_cast<size_t>(i)] = value(i);
  });
  copy_from(tensor, values);
}

}  // namespace

Tensor Inputs::place(std::string_view name, Shape shape, DType type, Layout layout) {
  const int64_t width = shape.rank() == 0 ? 1 : shape[-1],
                rows = width == 0 ? 0 : shape.elements() / width;
  const int64_t end = layout.offset + rows * (width + layout.row_padding);
  const Tensor storage =
      Tensor::empty(runtime_.arena(MemoryClass::activations), {end + kGuard}, type, name);
  if (has_data()) set_all(storage, kGuardValue);
  std::array<int64_t, kMaxRank> strides{};
  int64_t stride = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    strides[static_cast<size_t>(i)] = stride;
    stride *= i == shape.rank() - 1 ? width + layout.row_padding : shape[i];
  }
  return storage.as_strided(shape, std::span(strides.data(), static_cast<size_t>(shape.rank())),
                            layout.offset);
}

Tensor Inputs::normal(std::string_view name, Shape shape, DType type, double scale, Layout layout) {
  Tensor tensor = place(name, shape, type, layout);
  const RandomStream stream(kSeed, name);
  if (has_data()) {
    set_each(runtime_, tensor,
             [&](int64_t i) { return static_cast<float>(scale) * about_normal(stream, i); });
  }
  return tensor;
}

Tensor Inputs::positive(std::string_view name, Shape shape, DType type, double least,
                        Layout layout) {
  Tensor tensor = place(name, shape, type, layout);
  const RandomStream stream(kSeed, name);
  if (has_data()) {
    set_each(runtime_, tensor, [&](int64_t i) {
      return static_cast<float>(least) + std::abs(about_normal(stream, i));
    });
  }
  return tensor;
}

Tensor Inputs::integers(std::string_view name, Shape shape, DType type, int64_t begin,
                        int64_t end) {
  Tensor tensor = place(name, shape, type, {});
  const RandomStream stream(kSeed, name);
  const auto range = static_cast<uint64_t>(end - begin);
  std::vector<double> values(has_data() ? static_cast<size_t>(tensor.elements()) : 0);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<double>(begin + static_cast<int64_t>(stream.bits(i) % range));
  if (has_data()) copy_from(tensor, values);
  return tensor;
}

Tensor Inputs::values(std::string_view name, Shape shape, DType type,
                      std::span<const double> values) {
  Tensor tensor = place(name, shape, type, {});
  if (has_data()) copy_from(tensor, values);
  return tensor;
}

Tensor Inputs::output(std::string_view name, Shape shape, DType type, Layout layout) {
  const Tensor tensor = place(name, shape, type, layout);
  if (has_data() && is_floating(type)) set_all(tensor, std::numeric_limits<double>::quiet_NaN());
  outputs_.emplace_back(name, tensor);
  const std::string around = "elements around " + std::string(name);
  const int64_t width = shape.rank() == 0 ? 1 : shape[-1],
                rows = width == 0 ? 0 : shape.elements() / width;
  const int64_t row = width + layout.row_padding;
  const std::array<int64_t, 2> strides{row, 1};
  const auto flat = std::span(strides).last(1);
  outputs_.emplace_back(around, tensor.as_strided({kGuard}, flat, rows * row));
  outputs_.emplace_back(around, tensor.as_strided({layout.offset}, flat, -layout.offset));
  if (layout.row_padding > 0)
    outputs_.emplace_back(around, tensor.as_strided({rows, layout.row_padding}, strides, width));
  return tensor;
}

Tensor Inputs::updated(std::string_view name, const Tensor& tensor) {
  Tensor first =
      Tensor::empty(runtime_.arena(MemoryClass::activations), tensor.shape(), tensor.dtype(), name);
  if (has_data()) copy_from(first, to_doubles(tensor));
  restored_.emplace_back(tensor, first);
  outputs_.emplace_back(name, tensor);
  return tensor;
}

Case::Call Inputs::call(std::function<void(Stream&, const Table&)> run) {
  const auto restore_and_run = [restored = restored_, run](Stream& stream, const Table& table) {
    for (const auto& [changed, first] : restored) table.copy({.x = first, .out = changed}, stream);
    run(stream, table);
  };
  return {.run = restored_.empty() ? run : restore_and_run, .outputs = outputs_};
}

double tolerance(DType type, double roundings) {
  if (type == DType::f64) return 8 * roundings * 0x1p-53;
  return 8 * roundings * 0x1p-24 + (type == DType::bf16 ? 0x1p-5 : type == DType::f16 ? 0x1p-8 : 0);
}

std::string describe(DType type, Layout layout) {
  return std::string(name(type)) + (layout.row_padding > 0 ? " padded"
                                    : layout.offset > 0    ? " misaligned"
                                                           : "");
}

}  // namespace megatron::kernels
