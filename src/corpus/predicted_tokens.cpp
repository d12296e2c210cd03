#include "corpus/predicted_tokens.h"

namespace megatron::corpus {
namespace {

// True if tokens `at` and `later` of a sequence that begins at row `first` are of one document.
bool same_document(const HostBatch& whole, int64_t first, int64_t at, int64_t later) {
  if (later >= whole.layout.length) return false;
  const std::vector<int32_t>& starts = whole.segment_starts;
  return starts.empty() ||
         starts[static_cast<size_t>(first + at)] == starts[static_cast<size_t>(first + later)];
}

}  // namespace

// Every rank knows the whole sequences, so that none needs the tokens that another one holds.
HostPredicted predicted_tokens(const HostBatch& host, int64_t depth) {
  const HostBatch& whole = host.whole();
  const int64_t length = whole.layout.length, held = host.layout.held();
  const std::span<const int32_t> indices = host.indices();
  HostPredicted predicted;
  for (int64_t s = 0; s < whole.layout.sequences; ++s) {
    const int64_t first = s * length;
    double counted = 0, of_depth = 0;
    for (int64_t t = 0; t < length; ++t) {
      counted += whole.loss_mask[static_cast<size_t>(first + t)];
      if (same_document(whole, first, t, t + depth))
        of_depth += whole.loss_mask[static_cast<size_t>(first + t + depth)];
    }
    predicted.factors.push_back(of_depth == 0 ? 0 : counted / of_depth);
    for (int64_t i = 0; i < held; ++i) {
      const int64_t t = indices.empty() ? i : indices[static_cast<size_t>(s * held + i)];
      const bool there = same_document(whole, first, t, t + depth);
      const auto at = static_cast<size_t>(first + t + depth);
      predicted.tokens.push_back(there ? whole.tokens[at] : 0);
      predicted.labels.push_back(there ? whole.labels[at] : 0);
      predicted.counts.push_back(there ? whole.loss_mask[at] : 0);
    }
  }
  return predicted;
}

}  // namespace megatron::corpus
