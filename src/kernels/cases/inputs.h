// Tensors of one Case's call.
#pragma once

#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/case.h"

namespace megatron::kernels {

// Where a tensor lies in its storage: it starts at element `offset`, and `row_padding` elements
// follow each row.
struct Layout {
  int64_t offset = 0;
  int64_t row_padding = 0;
};
inline constexpr Layout kMisaligned = {.offset = 3, .row_padding = 0};
inline constexpr Layout kPadded = {.offset = 1, .row_padding = 5};

// Makes the tensors of a call: values depend on the tensor's name and the element's index only, so
// that every runtime gets the same ones. On meta there are shapes and no values.
class Inputs {
 public:
  explicit Inputs(Runtime& runtime) : runtime_(runtime) {}

  Runtime& runtime() { return runtime_; }
  bool has_data() const { return runtime_.device().has_data(); }
  // Whose forward gives a backward its inputs: the oracle's or, at real sizes, where it would take
  // minutes, and on CUDA, whose memory it cannot read, the device's own.
  DeviceKind forward_of(bool real) const {
    if (real || !runtime_.device().is_host()) return runtime_.device().kind;
    return DeviceKind::reference;
  }

  // About standard normal values (a sum of four uniform ones), times scale, rounded to the type.
  Tensor normal(std::string_view name, Shape shape, DType type, double scale = 1,
                Layout layout = {});
  // Absolute values of the above plus `least`.
  Tensor positive(std::string_view name, Shape shape, DType type, double least = 0,
                  Layout layout = {});
  // Uniform in [begin, end).
  Tensor integers(std::string_view name, Shape shape, DType type, int64_t begin, int64_t end);
  Tensor values(std::string_view name, Shape shape, DType type, std::span<const double> values);
  Tensor scalar(std::string_view name, double value) {
    return values(name, {}, DType::f64, std::span(&value, 1));
  }

  // A tensor that the call writes: NaN before it, so that reading it shows. The elements around it
  // in its storage are outputs too, which must keep their value.
  Tensor output(std::string_view name, Shape shape, DType type, Layout layout = {});
  // Makes a tensor from above one that the call changes: it gets its first values back before each
  // run.
  Tensor updated(std::string_view name, const Tensor& tensor);

  Case::Call call(std::function<void(Stream&, const Table&)> run);

 private:
  Tensor place(std::string_view name, Shape shape, DType type, Layout layout);

  Runtime& runtime_;
  std::vector<std::pair<std::string, Tensor>> outputs_;
  std::vector<std::pair<Tensor, Tensor>> restored_;  // {changed, first values}
};

// Bound of the error of a result that is rounded `roundings` times in the accumulator's type (unit
// roundoff u = 2^-53 or 2^-24), for elements of up to 8 times the rms; bf16 and f16 results may
// also round to a neighbour: 2^-7 and 2^-10 of an element below 4 rms, the largest of some 1e4
// normal values.
double tolerance(DType type, double roundings);

// Whether Cases of real models' shapes are in this format: f64 is for checks.
constexpr bool trained(DType type) { return type != DType::f64; }

std::string describe(DType type, Layout layout);  // "bf16 misaligned"

}  // namespace megatron::kernels
