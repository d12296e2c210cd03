#include "base/error.h"
#include "data/bert_dataset.h"

namespace megatron::data {
namespace {

int64_t blend_size(std::span<const double> weights, int64_t samples) {
  int64_t size = 0;
  for (const double weight : weights) size += share_of_blend(samples, weight, 0);
  return size;
}

}  // namespace

BertBlend::BertBlend(std::vector<std::shared_ptr<const BertDataset>> parts,
                     std::vector<std::string> names, std::span<const double> weights,
                     int64_t samples)
    : parts_(std::move(parts)), index_(blend_by_weight(weights, blend_size(weights, samples))) {
  MG_ASSERT(parts_.size() == weights.size() && names.size() == parts_.size());
  for (size_t d = 0; d < parts_.size(); ++d)
    MG_CHECK(index_.counts[d] <= parts_[d]->size(),
             "the blend takes {} samples of {}, which has only {}: raise "
             "--mid-level-dataset-surplus",
             index_.counts[d], names[d], parts_[d]->size());
}

void BertBlend::read(int64_t k, BertExample& example) const {
  MG_CHECK(k >= 0 && k < size(), "sample {} does not exist; the blend has {} samples", k, size());
  const auto i = static_cast<size_t>(k);
  parts_[static_cast<size_t>(index_.set[i])]->read(index_.sample[i], example);
}

std::shared_ptr<const BertExamples> build_bert_examples(const BlendList& list,
                                                        const BertTokens& tokens,
                                                        const BertDatasetConfig& config,
                                                        Split split, std::optional<int64_t> samples,
                                                        double surplus) {
  const auto open = [&](size_t d, std::optional<int64_t> count) {
    return std::make_shared<const BertDataset>(
        std::make_shared<const IndexedDataset>(list.prefixes[d]), tokens, config, split, count);
  };
  if (list.prefixes.size() == 1 && !list.weighted()) return open(0, samples);
  MG_CHECK(list.weighted() && samples,
           "{} data sets of sentences are given without {}: each needs a number of samples; give "
           "pairs of weight and prefix, and drop --full-validation",
           list.prefixes.size(), list.weighted() ? "a number of samples" : "weights");
  const std::vector<double> weights = normalized(list.weights);
  std::vector<std::shared_ptr<const BertDataset>> parts;
  for (size_t d = 0; d < list.prefixes.size(); ++d) {
    MG_CHECK(weights[d] > 0, "the weight {} of {} is too small compared with the others",
             list.weights[d], list.prefixes[d]);
    parts.push_back(open(d, share_of_blend(*samples, weights[d], surplus)));
  }
  return std::make_shared<const BertBlend>(std::move(parts), list.prefixes, weights, *samples);
}

}  // namespace megatron::data
