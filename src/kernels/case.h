// Cases: one struct a kernel and shape gives correctness (every back-end against the reference),
// speed (`bench kernels`) and the support table. A kernel without a Case fails
// tools/check_coverage.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/table.h"

namespace megatron::kernels {

struct Case {
  std::string kernel;  // entry of the table
  std::string name;    // "t=7 h=33 bf16 misaligned"
  DType dtype = DType::f32;
  double tolerance =
      0;  // bound of |out - reference|, relative to the rms of the reference's output tensor
  bool real = false;   // a shape of real models: timed by the bench
  bool large = false;  // and that of a Llama of 8 billion parameters, for GPUs
  // Makes the same inputs from a seed on any runtime (host devices: filled; meta: shapes only) and
  // returns the call.
  struct Call {
    std::function<void(Stream&, const Table&)> run;  // may be called again: same result
    std::vector<std::pair<std::string, Tensor>> outputs;
  };
  std::function<Call(Runtime&)> make;
};

// Every Case of every kernel, in the order of the table.
std::vector<Case> cases();

// One Case on a back-end against the reference: the worst error of its outputs over the tolerance
// (<= 1 passes), and where.
struct CaseResult {
  double worst = 0;  // error / tolerance
  std::string output;
};
CaseResult compare_with_reference(const Case& kernel_case, Runtime& runtime);
// The same against the CPU's kernels, for shapes of real models, where the reference takes minutes:
// each of the two may be as far from it as the Case's tolerance says, of an element beyond 4 rms
// as far as of one that is as large: of 1e7 elements some are.
CaseResult compare_with_cpu(const Case& kernel_case, Runtime& runtime);

}  // namespace megatron::kernels
