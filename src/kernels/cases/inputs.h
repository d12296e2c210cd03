// Tensors of one Case's call.
#pragma once

#include <initializer_list>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/case.h"
#include "kernels/for_each_kernel.h"

namespace megatron::kernels {

// Position of a tensor in its storage: it starts at element `offset`, and `row_padding` elements
// follow each row.
struct Layout {
  int64_t offset = 0;
  int64_t row_padding = 0;
};
inline constexpr Layout kMisaligned = {.offset = 3, .row_padding = 0};
inline constexpr Layout kPadded = {.offset = 1, .row_padding = 5};

// Creates the tensors of a call. Values depend only on the tensor's name and the element's index,
// so that they are the same on every runtime. On meta there are shapes but no values.
class Inputs {
 public:
  explicit Inputs(Runtime& runtime) : runtime_(runtime) {}

  Runtime& runtime() { return runtime_; }
  bool has_data() const { return runtime_.device().has_data(); }
  // Device whose forward pass computes the inputs of a backward pass: the reference; or the device
  // itself at real sizes, where the reference would take minutes, and on CUDA, whose memory the
  // reference cannot read.
  DeviceKind forward_of(bool real) const {
    if (real || !runtime_.device().is_host()) return runtime_.device().kind;
    return DeviceKind::reference;
  }

  // Approximately standard normal values (a sum of four uniform ones), times scale, rounded to the
  // type.
  Tensor normal(std::string_view name, Shape shape, DType type, double scale = 1,
                Layout layout = {});
  // Absolute values of normal() plus `least`.
  Tensor positive(std::string_view name, Shape shape, DType type, double least = 0,
                  Layout layout = {});
  // Uniform in [begin, end).
  Tensor integers(std::string_view name, Shape shape, DType type, int64_t begin, int64_t end);
  Tensor values(std::string_view name, Shape shape, DType type, std::span<const double> values);
  Tensor scalar(std::string_view name, double value) {
    return values(name, {}, DType::f64, std::span(&value, 1));
  }

  // A tensor that the call writes. It is NaN before the call, so that reading it is detected. The
  // surrounding elements of its storage are outputs as well, which must keep their values.
  Tensor output(std::string_view name, Shape shape, DType type, Layout layout = {});
  // Marks one of these tensors as modified by the call: its initial values are restored before each
  // run.
  Tensor updated(std::string_view name, const Tensor& tensor);
  // The destination of a sum: an output with beta 0, else normal values that are added to.
  Accumulate sum(std::string_view name, Shape shape, DType type, float beta, Layout layout = {}) {
    if (beta == 0) return {output(name, shape, type, layout), 0};
    return {updated(name, normal(name, shape, type, 1, layout)), beta};
  }

  Case::Call call(std::function<void(Stream&, const Table&)> run);

 private:
  Tensor place(std::string_view name, Shape shape, DType type, Layout layout);

  Runtime& runtime_;
  std::vector<std::pair<std::string, Tensor>> outputs_;
  std::vector<std::pair<Tensor, Tensor>> restored_;  // {modified, initial values}
};

// Error bound for a result that is rounded `roundings` times in the accumulator's type (unit
// roundoff u = 2^-53 or 2^-24), for elements of up to 8 times the rms. bf16 and f16 results may
// also round to a neighbour: 2^-7 and 2^-10 of an element below 4 rms, the largest of some 1e4
// normal values.
double tolerance(DType type, double roundings);

// True if Cases with shapes of real models use this format; f64 is only for checks.
constexpr bool trained(DType type) { return type != DType::f64; }

std::string describe(DType type, Layout layout);  // "bf16 misaligned"

inline constexpr std::initializer_list<DType> kFloats = {DType::f32, DType::bf16, DType::f16,
                                                         DType::f64};

// Shape of a Case that is made of a few numbers.
struct Named {
  std::string name;
  DType type = DType::f32;
  bool real = false;

  const std::string& str() const { return name; }
};

// The shapes in each of the types; those of real models in the types in which models are trained.
template <class S>
std::vector<S> in_types(const std::vector<S>& shapes,
                        std::initializer_list<DType> types = kFloats) {
  std::vector<S> all;
  for (const DType type : types) {
    for (const S& shape : shapes) {
      if constexpr (requires { shape.real; })
        if (shape.real && !trained(type)) continue;
      all.push_back(shape);
      all.back().type = type;
    }
  }
  return all;
}

// A Case of one call of a kernel, whose arguments are arguments(inputs, shape). The shape has a
// type and str(), which names the Case, and may have `real` and `large`.
template <class Args, class S, class F>
Case case_of(void (*Table::*kernel)(const Args&, Stream&), const S& shape, double tolerance,
             F arguments) {
  Case made{.kernel = std::string(name_of(kernel)),
            .name = shape.str(),
            .dtype = shape.type,
            .tolerance = tolerance};
  if constexpr (requires { shape.real; }) made.real = shape.real;
  if constexpr (requires { shape.large; }) made.large = shape.large;
  made.make = [=](Runtime& runtime) {
    Inputs inputs(runtime);
    const Args args = arguments(inputs, shape);
    return inputs.call(
        [args, kernel](Stream& stream, const Table& table) { (table.*kernel)(args, stream); });
  };
  return made;
}

}  // namespace megatron::kernels
