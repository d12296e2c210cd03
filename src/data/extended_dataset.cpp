#include "data/extended_dataset.h"

#include <algorithm>

#include "base/error.h"

namespace megatron::data {

ExtendedDataset::ExtendedDataset(std::shared_ptr<const TokenSource> source,
                                 const GptDatasetConfig& config, Split split,
                                 std::optional<int64_t> samples, int64_t extended) {
  const auto append = [&](int64_t seed, std::optional<int64_t> asked) {
    GptDatasetConfig own = config;
    own.seed = seed;
    auto set = std::make_unique<const GptDataset>(source, std::move(own), split, asked);
    if (set->size() == 0 && !parts_.empty()) return;
    ends_.push_back((ends_.empty() ? 0 : ends_.back()) + set->size());
    parts_.push_back(std::move(set));
  };
  append(config.seed, samples);
  const IndexRequest& request = base().request();
  constexpr int64_t kSeeds = int64_t{1} << 32;
  int64_t seed = config.seed;
  for (int64_t epochs = 1; size() < extended; epochs *= 2) {
    seed = (seed + 1) % kSeeds;
    append(seed,
           (epochs * request.tokens_per_epoch - request.extra_tokens) / request.sequence_length);
  }
}

void ExtendedDataset::read(int64_t k, Sample& sample) const {
  MG_CHECK(k >= 0 && k < size(), "sample {} does not exist; the data set has {} samples", k,
           size());
  const auto part = static_cast<size_t>(std::ranges::upper_bound(ends_, k) - ends_.begin());
  parts_[part]->read(part == 0 ? k : k - ends_[part - 1], sample);
}

}  // namespace megatron::data
