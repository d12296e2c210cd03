// Adapters of experts whose weights are one parameter [experts, out, in], as PEFT stores them
// (target_parameters): one tensor A and one B for all experts. Adapters of experts that are modules
// (mlp.experts.7.gate_proj) have tensors of their own and need no layout.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "models/adapters/adapter_directory.h"

namespace megatron::models {

// Element of a stored tensor in row-major order.
struct StoredElement {
  AdapterPart part = AdapterPart::a;  // a or b
  int64_t index = 0;
  bool operator==(const StoredElement&) const = default;
};

// The base weight of expert e grows by scale * B_e A_e, with A_e [rank, in] and B_e [out, rank].
// Stored are A [experts * rank, in], in which the expert changes slowest, and B [out, rank *
// experts], in which it changes fastest. `swapped`: the base weight's transpose grows by the
// product of what is stored, so that A_e is in the tensor B [in, rank * experts], and B_e in A
// [experts * rank, out].
struct ExpertLayout {
  int64_t experts = 1, rank = 1, in = 1, out = 1;
  bool swapped = false;

  StoredElement a(int64_t expert, int64_t row, int64_t column) const;  // of A_e
  StoredElement b(int64_t expert, int64_t row, int64_t column) const;  // of B_e
  std::vector<int64_t> stored_shape(AdapterPart part) const;

  bool operator==(const ExpertLayout&) const = default;
};

// What is known of a fused weight and its adapter.
struct FusedExperts {
  std::string_view name;  // "model.layers.0.mlp.experts.down_proj", for errors
  int64_t experts = 1, in = 1, out = 1;
  bool transposed = false;                // the base weight is [experts, in, out]
  std::vector<int64_t> shape_a, shape_b;  // of the stored tensors
  std::string_view peft_version;          // LoraConfig::peft_version
};

// Told by the shapes; where in equals out, by the version: PEFT before 0.19 takes every weight to
// be [experts, in, out], and swaps those that are not. Throws Error naming the shapes that fit.
ExpertLayout expert_layout(const FusedExperts& fused);

}  // namespace megatron::models
