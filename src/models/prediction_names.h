// Names of multi-token prediction: of its tensors in files, as DeepSeek-V3 and GLM-4.5 have them,
// and of its metrics.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::models {

// Endings of the names of a depth's copies of the embedding and of the output layer, which files
// may have.
inline constexpr std::string_view kPredictionEmbedding = ".embed_tokens.weight",
                                  kPredictionHead = ".shared_head.head.weight";

// The mean of a depth's losses, by the name that Megatron-LM logs it; and the share of the same
// labels that its logits rank first (PredictionLosses::hits).
inline std::string prediction_loss_metric(int64_t depth) {
  return "mtp_" + std::to_string(depth) + " loss";
}
inline std::string prediction_acceptance_metric(int64_t depth) {
  return "mtp_" + std::to_string(depth) + " acceptance";
}
// Both of each depth, in the order of the log.
inline std::vector<std::string> prediction_metrics(int64_t depths) {
  std::vector<std::string> names;
  for (int64_t depth = 1; depth <= depths; ++depth) {
    names.push_back(prediction_loss_metric(depth));
    names.push_back(prediction_acceptance_metric(depth));
  }
  return names;
}
// L2 norm of the gradients of detached depths, before they are clipped.
inline constexpr std::string_view kPredictionNorm = "mtp grad norm";

}  // namespace megatron::models
