// A plan with fixed figures.
#pragma once

#include "plan/plan.h"

namespace megatron::plan {

// Four layers, the last of which differs, on two ranks of a machine with 8 GB.
inline Plan small_plan() {
  Plan p{.model = "11.4M parameters, 4 layers, hidden 256, vocabulary 8192",
         .device = "cpu",
         .type = DType::bf16,
         .ranks = 2,
         .ranks_here = 2,
         .threads = 1,
         .axes = {.data = 2, .expert = 0},
         .sequences = 16,
         .length = 512,
         .micro_batches = 2,
         .micro_batch_size = 4,
         .iterations = 1000};
  p.parameters = {{"embedding", "embedding", 2097152}, {"embedding", "position", 131072}};
  for (int i = 0; i < 4; ++i) {
    const std::string span = "layers." + std::to_string(i);
    p.parameters.push_back({span, "norm", 1024});
    p.parameters.push_back({span, "attention", 263168});
    p.parameters.push_back({span, "mlp", i == 3 ? 2105344 : 525568});
  }
  p.parameters.push_back({"head", "norm", 512});
  p.flops = {{"model", 3.0e11}, {"megatron", 3.5e11}, {"megatron_full_attention", 4.25e11}};
  p.memory.arenas = {14000000, 28000000, 70000000, 210000000, 17500000, 0};
  p.memory.host = 10500000;
  p.program = 60000000;
  p.machine = 8000000000;
  p.kernels = {{"adam", DType::f32, 50, {0, 3.0e8}, 0.05},
               {"gemm", DType::bf16, 120, {2.9e11, 8.0e9}, 1.0},
               {"attention_backward", DType::bf16, 16, {5.0e9, 1.0e9}, 0.45}};
  p.traffic = {{"all_reduce", "gradients", 2, 1, 2.8e7, 2.8e7}};
  p.step_seconds = 1.6;
  p.peak = 5.0e11;
  p.megatron = MegatronEstimate{205000000, 450000000};
  return p;
}

}  // namespace megatron::plan
