#include "corpus/embedding_factors.h"

#include "models/left_out.h"

namespace megatron::corpus {

std::vector<double> embedding_factors(const HostBatch& batch, int64_t mask_token) {
  const HostBatch& whole = batch.whole();
  const std::vector<int32_t>&starts = whole.segment_starts, &ends = whole.segment_ends;
  const auto length = static_cast<size_t>(whole.layout.length);
  std::vector<double> factors(whole.tokens.size());
  for (size_t begin = 0, end = 0; begin < factors.size(); begin = end) {
    int64_t tokens = 0, masks = 0;  // without hidden ones, which are after the segment's end
    const auto hidden = [&](size_t t) {
      return !ends.empty() && static_cast<int32_t>(t % length) > ends[begin];
    };
    for (end = begin; end < factors.size(); ++end) {
      const bool other =
          end > begin && (end % length == 0 || (!starts.empty() && starts[end] != starts[begin]));
      if (other) break;
      if (hidden(end)) continue;
      tokens += 1;
      masks += whole.tokens[end] == mask_token ? 1 : 0;
    }
    for (size_t t = begin; t < end; ++t)
      if (whole.tokens[t] != mask_token && masks < tokens && !hidden(t))
        factors[t] = models::embedding_factor(tokens, masks);
  }
  const std::span<const int32_t> indices = batch.indices();
  if (indices.empty()) return factors;
  const auto held = static_cast<size_t>(batch.layout.held());
  std::vector<double> own;
  for (size_t i = 0; i < indices.size(); ++i)
    own.push_back(factors[i / held * length + static_cast<size_t>(indices[i])]);
  return own;
}

}  // namespace megatron::corpus
