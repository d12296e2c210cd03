// What the depths of multi-token prediction read and predict (nn::PredictedTokens), on the host.
#pragma once

#include <cstdint>
#include <vector>

#include "corpus/batch.h"

namespace megatron::corpus {

// For each token that the rank holds, of depth k: the k-th token after it, its label and what its
// label counts in the batch. Without such a token in the same document, 0.
struct HostPredicted {
  std::vector<int32_t> tokens, labels;
  std::vector<double> counts;
  // Factor of the losses of each sequence: the number of its labels that count, divided by the
  // number of those of the depth. With it, the sum of a depth's losses over a sequence is as large
  // as if none of its tokens lacked a label.
  std::vector<double> factors;
};
HostPredicted predicted_tokens(const HostBatch& host, int64_t depth);

}  // namespace megatron::corpus
