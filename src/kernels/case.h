// Test cases of kernels: one struct per kernel and shape provides correctness (every back-end
// against the reference), speed (`bench kernels`) and the support table. A kernel without a Case
// fails tools/check_coverage.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/table.h"

namespace megatron::kernels {

struct Case {
  std::string kernel;  // the table's entry
  std::string name;    // "t=7 h=33 bf16 misaligned"
  DType dtype = DType::f32;
  double tolerance =
      0;  // bound of |out - reference|, relative to the rms of the reference's output tensor
  bool exact = false;  // outputs equal the reference's in every bit, NaN equal to NaN
  bool real = false;   // a shape of real models: timed by the bench
  bool large = false;  // also one of a Llama of 8 billion parameters, for GPUs
  // Creates the same inputs from a seed on any runtime (host devices: filled; meta: only shapes)
  // and returns the call.
  struct Call {
    std::function<void(Stream&, const Table&)> run;  // may be called again: same result
    std::vector<std::pair<std::string, Tensor>> outputs;
  };
  std::function<Call(Runtime&)> make;
};

// Every Case of every kernel, in the order of the table.
std::vector<Case> cases();

// Result of a Case on one back-end compared with the reference: the largest error of its outputs
// relative to the tolerance (<= 1 passes), and its location.
struct CaseResult {
  double worst = 0;  // error / tolerance
  std::string output;
};
CaseResult compare_with_reference(const Case& kernel_case, Runtime& runtime);
// The same against the CPU's kernels, for shapes of real models, where the reference takes minutes.
// Each of the two may deviate from the exact result by the Case's tolerance; for elements beyond 4
// rms, of which 1e7 elements have some, the tolerance grows with their size.
CaseResult compare_with_cpu(const Case& kernel_case, Runtime& runtime);

}  // namespace megatron::kernels
