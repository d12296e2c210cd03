// Floating-point operations of a training step, forward and backward, by formula:
//
//   model                    what this program reports: ModelDefinition::training_flops(), with the
//                            unpadded vocabulary
//   megatron                 what Megatron-LM reports (plan/megatron_flops.h): attention counts
//                            half as well; the padded vocabulary
//   megatron_full_attention  what its older versions and papers report: every query meets every key
#pragma once

#include <string_view>
#include <vector>

#include "models/model.h"
#include "plan/plan.h"

namespace megatron::plan {

inline constexpr std::string_view kModelFlops = "model", kMegatronFlops = "megatron",
                                  kMegatronFullAttentionFlops = "megatron_full_attention";

// FLOPs of a step of `sequences` by every formula, "model" first. padded_vocabulary: rows of
// Megatron-LM's embedding table.
std::vector<FlopCount> step_flops(const models::Model& model, int64_t padded_vocabulary,
                                  int64_t sequences, int64_t length);

}  // namespace megatron::plan
