// Batched calls (kernels/together.h), which must give the same results as single calls.
#include "kernels/together.h"

#include <fmt/core.h>

#include "base/divide.h"
#include "kernels/cases/inputs.h"

namespace megatron::kernels {
namespace {

// Tensors of a list: of one unit of a launch's work and of several, empty ones, and some that are
// not aligned to vectors.
struct Listed {
  Shape shape;
  Layout layout;
};
std::vector<Listed> listed() {
  std::vector<Listed> all = {
      {{0, 4}, {}},           {{70, 300}, {}}, {{1}, {}},    {{0}, {}},
      {{7, 33}, kMisaligned}, {{2048}, {}},    {{2049}, {}}, {{3 * kNormBlock - 5}, kMisaligned}};
  for (int64_t i = 1; i < 40; ++i) all.push_back({{i, 3}, {}});
  all.push_back({{0, 7}, {}});
  return all;
}

// Makes the tensors of one call.
struct Maker {
  Inputs& inputs;
  DType type;
  Listed listed = {};
  int number = -1;

  std::string name(std::string_view of) const { return fmt::format("{}.{}", of, number); }
  Tensor normal(std::string_view of, DType of_type, double scale) {
    return inputs.normal(name(of), listed.shape, of_type, scale, listed.layout);
  }
  Tensor updated(std::string_view of, DType of_type, double scale) {
    return inputs.updated(name(of), normal(of, of_type, scale));
  }
  Tensor codes(std::string_view of, int64_t end) {
    return inputs.updated(name(of), inputs.integers(name(of), listed.shape, DType::u8, 0, end));
  }
  Tensor wide(std::string_view of, double scale) { return normal(of, accumulator(type), scale); }
  // Some parameters of a bf16 model have type f32.
  MasterWeight parameter() {
    const DType own = type == DType::bf16 && number % 4 == 3 ? DType::f32 : type;
    MasterWeight weight{updated("value", own, 1), {}};
    if (own == DType::bf16) {
      weight.remainder = inputs.updated(
          name("remainder"),
          inputs.integers(name("remainder"), listed.shape, DType::i16, -32768, 32768));
    }
    return weight;
  }
};

// Scalars of a step. Some tensors have another learning rate, some have no weight decay.
struct Numbers {
  Tensor lr, other_lr, weight_decay, step, scale;

  explicit Numbers(Inputs& inputs)
      : lr(inputs.scalar("lr", 0.01)),
        other_lr(inputs.scalar("other_lr", 0.003)),
        weight_decay(inputs.scalar("weight_decay", 0.1)),
        step(inputs.scalar("step", 3)),
        scale(inputs.scalar("scale", 0.013)) {}
  template <class Args>
  void put(Args& args, int number) const {
    args.lr = number % 5 == 1 ? other_lr : lr;
    args.weight_decay = weight_decay;
    if constexpr (requires { args.step; }) args.step = step;
    args.scale = scale;
    args.decay = number % 3 != 1;
  }
};

AdamArgs adam_call(Maker& make, const Numbers& numbers, DType moments) {
  AdamArgs args{.parameter = make.parameter(), .grad = make.wide("grad", 100)};
  if (moments == DType::u8) {
    args.exp_avg = make.codes("exp_avg", 127);
    args.exp_avg_sq = make.codes("exp_avg_sq", 256);
  } else {
    args.exp_avg = make.updated("exp_avg", moments, 0.1);
    args.exp_avg_sq = make.inputs.updated(
        make.name("exp_avg_sq"), make.inputs.positive(make.name("exp_avg_sq"), make.listed.shape,
                                                      moments, 0.01, make.listed.layout));
  }
  args.beta2 = 0.95;
  args.eps = make.number % 4 == 2 ? 1e-3 : 1e-8;
  numbers.put(args, make.number);
  return args;
}

SgdArgs sgd_call(Maker& make, const Numbers& numbers, double momentum) {
  SgdArgs args{.parameter = make.parameter(), .grad = make.wide("grad", 100), .momentum = momentum};
  if (momentum != 0) args.buffer = make.updated("buffer", accumulator(make.type), 1);
  numbers.put(args, make.number);
  return args;
}

LionArgs lion_call(Maker& make, const Numbers& numbers) {
  LionArgs args{.parameter = make.parameter(), .grad = make.wide("grad", 100)};
  args.exp_avg = make.updated("exp_avg", accumulator(make.type), 1);
  numbers.put(args, make.number);
  return args;
}

CopyArgs copy_call(Maker& make, DType out) {
  const auto& [shape, layout] = make.listed;
  return {.x = make.wide("x", 1), .out = make.inputs.output(make.name("out"), shape, out, layout)};
}

SumOfSquaresArgs squares_call(Maker& make) {
  const Tensor x = make.wide("x", 1).view({make.listed.shape.elements()});
  return {.x = x,
          .partial = make.inputs.output(make.name("partial"), {ceil_div(x.elements(), kNormBlock)},
                                        DType::f64)};
}

// A Case for a list of calls; `call` creates each.
template <class Call>
Case together_case(std::string kernel, std::string_view what, DType type, double tolerance,
                   Call call) {
  return {.kernel = std::move(kernel),
          .name = fmt::format("together {}{}", describe(type, {}), what),
          .dtype = type,
          .tolerance = tolerance,
          .make = [type, call](Runtime& runtime) {
            Inputs inputs(runtime);
            const Numbers numbers(inputs);
            Maker make{inputs, type};
            std::vector<decltype(call(make, numbers))> calls;
            for (const Listed& one : listed()) {
              make.listed = one;
              ++make.number;
              calls.push_back(call(make, numbers));
            }
            const std::shared_ptr<Together> all =
                together(std::move(calls), runtime.arena(MemoryClass::optimizer), runtime.stream());
            return inputs.call([all](Stream& stream, const Table&) { all->run(stream); });
          }};
}

}  // namespace

void add_together_cases(std::vector<Case>& cases) {
  for (const DType type : {DType::f32, DType::bf16, DType::f64}) {
    const double exact = tolerance(accumulator(type), 8);
    for (const DType moments : {accumulator(type), DType::bf16, DType::u8}) {
      cases.push_back(together_case(
          "adam", moments == accumulator(type) ? "" : fmt::format(" moments {}", name(moments)),
          type, moments == DType::bf16 ? tolerance(DType::bf16, 8) : exact,
          [moments](Maker& make, const Numbers& n) { return adam_call(make, n, moments); }));
    }
    for (const double momentum : {0.9, 0.0}) {
      cases.push_back(together_case(
          "sgd", momentum == 0 ? " no momentum" : "", type, exact,
          [momentum](Maker& make, const Numbers& n) { return sgd_call(make, n, momentum); }));
    }
    cases.push_back(together_case("lion", "", type, exact, lion_call));
  }
  for (const DType out : {DType::f32, DType::bf16, DType::f16}) {
    cases.push_back(
        together_case("copy", fmt::format(" to {}", name(out)), DType::f32, tolerance(out, 1),
                      [out](Maker& make, const Numbers&) { return copy_call(make, out); }));
  }
  for (const DType type : {DType::f32, DType::f64}) {
    cases.push_back(together_case("sum_of_squares", "", type, 0x1p-53,
                                  [](Maker& make, const Numbers&) { return squares_call(make); }));
  }
}

}  // namespace megatron::kernels
