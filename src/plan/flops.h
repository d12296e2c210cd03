// Floating-point operations of a training step, forward and backward, by formula:
//
//   model                    what this program reports: ModelDefinition::training_flops(), with the
//                            unpadded vocabulary; with frozen parameters, executed_flops()
//   megatron                 what Megatron-LM reports (plan/megatron_flops.h): attention counts
//                            half as well; the padded vocabulary
//   megatron_full_attention  what its older versions and papers report: every query meets every key
#pragma once

#include <string_view>
#include <vector>

#include "models/stage.h"
#include "plan/plan.h"

namespace megatron::plan {

inline constexpr std::string_view kModelFlops = "model", kMegatronFlops = "megatron",
                                  kMegatronFullAttentionFlops = "megatron_full_attention";

// FLOPs that forward and backward of one sequence execute in the products of a stage that is the
// whole model, built on the meta device of `meta`: those of parameters that are not trainable have
// no weight gradients, and nothing is computed before the first that is. Counted as in
// ModelDefinition::training_flops(), which this is for a model without frozen parameters.
double executed_flops(const models::Stage& whole, Runtime& meta, const models::TextLength& length);

// FLOPs of a step of `sequences` by every formula, "model" first, which is the only one of an
// encoder-decoder. of_sequence: that of one
// sequence. padded_vocabulary: rows of Megatron-LM's embedding table.
std::vector<FlopCount> step_flops(const models::Model& model, double of_sequence,
                                  int64_t padded_vocabulary, int64_t sequences, int64_t length);

}  // namespace megatron::plan
