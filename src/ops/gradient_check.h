// Checks the gradient of every op against central differences of its forward, in fp64. Every
// differentiable function must have a case here.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "autograd/tape.h"

namespace megatron::ops {

struct GradientCase {
  // Outputs of the op. The objective is the sum of all outputs times fixed coefficients, plus
  // sum(weights * loss) for an op that is a loss.
  struct Result {
    std::vector<Var> outputs;
    Tensor loss, weights;
  };
  std::string name;
  std::vector<Shape> inputs, weights;
  std::function<Result(Tape&, std::span<const Var> inputs, std::span<const Weight> weights)> run;
};

std::vector<GradientCase> gradient_cases();

// Adds a case; op(tape, inputs, weights) returns the op's output, or a Result.
template <class Op>
void add_case(std::vector<GradientCase>& cases, std::string name, std::vector<Shape> inputs,
              std::vector<Shape> weights, Op op) {
  using Result = GradientCase::Result;
  const auto run = [op](Tape& t, std::span<const Var> x, std::span<const Weight> w) -> Result {
    if constexpr (std::is_same_v<decltype(op(t, x, w)), Var>) {
      return {{op(t, x, w)}};
    } else {
      return op(t, x, w);
    }
  };
  cases.push_back({std::move(name), std::move(inputs), std::move(weights), run});
}

// Largest difference between backward and finite differences, relative to the largest gradient of
// that tensor (at least 1e-3).
struct GradientError {
  double worst = 0;
  std::string tensor;  // "input 0", "weight 1"
};
// runtime: a device that computes in fp64. table: kernels to use; default: those of the runtime.
GradientError gradient_error(const GradientCase& gradient_case, Runtime& runtime,
                             const kernels::Table* table = nullptr);
// Compares backward in `type` on the runtime with backward of the reference in fp64, which is
// itself compared with differences as above; relative to the same gradient.
GradientError gradient_distance(const GradientCase& gradient_case, DType type, Runtime& runtime);

}  // namespace megatron::ops
