#include "selftest/preferences.h"

#include <algorithm>
#include <numeric>

#include "corpus/chat/preference_role.h"

namespace megatron::selftest {
namespace {

// Calls f(index of the first token, tokens of each document) for every pair of documents.
template <class F>
void for_each_pair(const corpus::HostBatch& batch, F&& f) {
  const int64_t length = batch.layout.length;
  for (int64_t i = 0; i < batch.layout.sequences; ++i) {
    const int64_t pairs = 1 + batch.sample_ids[static_cast<size_t>(i)] % 2;
    for (int64_t pair = 0; pair < pairs; ++pair)
      f(i * length + pair * (length / pairs), length / pairs / 2);
  }
}

}  // namespace

void mark_preferences(corpus::HostBatch& batch) {
  const size_t tokens = batch.tokens.size();
  batch.targets.assign(tokens, 0);
  batch.segment_starts.assign(tokens, 0);
  for_each_pair(batch, [&](int64_t first, int64_t size) {
    for (int64_t i = 0; i < 2 * size; ++i) {
      const auto at = static_cast<size_t>(first + i);
      const int64_t document = i / size, index = i % size,
                    begin = 2 + batch.tokens[static_cast<size_t>(first + document * size)] % 3;
      batch.positions[at] = static_cast<int32_t>(index);
      batch.segment_starts[at] =
          static_cast<int32_t>((first + document * size) % batch.layout.length);
      // The last label is a token of the next document.
      batch.loss_mask[at] = index + 1 >= begin && index + 1 < size ? 1.0f : 0.0f;
      batch.targets[at] = static_cast<double>(document == 0 ? corpus::PreferenceRole::chosen
                                                            : corpus::PreferenceRole::rejected);
    }
  });
}

void swap_preferences(corpus::HostBatch& batch) {
  for_each_pair(batch, [&](int64_t first, int64_t size) {
    const auto exchange = [&](auto& values) {
      const auto begin = values.begin() + first;
      std::swap_ranges(begin, begin + size, begin + size);
    };
    exchange(batch.tokens);
    exchange(batch.labels);
    exchange(batch.loss_mask);
  });
}

training::ObjectiveTerms ComparedPreferences::evaluate(const corpus::HostBatch& batch,
                                                       std::span<const double> values,
                                                       std::span<double> gradient) const {
  training::ObjectiveTerms terms = dpo_.evaluate(batch, values, gradient);
  const double pairs = counted(batch),
               sum = std::inner_product(batch.reference.begin(), batch.reference.end(),
                                        batch.loss_mask.begin(), 0.0);
  terms.metrics.push_back({kReference, sum / pairs, pairs});
  return terms;
}

std::vector<MetricDefinition> ComparedPreferences::metrics() const {
  std::vector<MetricDefinition> all = dpo_.metrics();
  all.push_back({.name = std::string(kReference)});
  return all;
}

}  // namespace megatron::selftest
