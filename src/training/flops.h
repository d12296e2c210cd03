// Floating-point operations of a training step, by formula "model": 2MNK a matrix product, three
// times the forward; causal attention counts half; the vocabulary unpadded; no lookups, norms,
// element-wise work or recompute.
#pragma once

#include <string_view>

#include "models/gpt/config.h"

namespace megatron::training {

inline constexpr std::string_view kFlopFormula = "model";

// Of one sequence of `length` tokens, forward and backward.
double training_flops(const models::GptConfig& config, int64_t length);
int64_t parameter_count(const models::GptConfig& config);

}  // namespace megatron::training
