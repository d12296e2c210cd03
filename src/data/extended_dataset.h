// A GPT data set that serves more samples than initially requested, in an order whose beginning
// does not depend on how many more.
#pragma once

#include <memory>
#include <vector>

#include "data/gpt_dataset.h"

namespace megatron::data {

// First serves the whole data set built for `samples`; then, one after the other, data sets of 1,
// 2, 4 ... whole epochs, shuffled by seed + 1, seed + 2 ..., until there are `extended`.
// (Requesting more samples of a single data set would shuffle other epochs together, and so change
// the order of all its samples.)
class ExtendedDataset final : public Dataset {
 public:
  // Throws Error like GptDataset.
  ExtendedDataset(std::shared_ptr<const TokenSource> source, const GptDatasetConfig& config,
                  Split split, std::optional<int64_t> samples, int64_t extended);

  int64_t size() const override { return ends_.back(); }
  void read(int64_t k, Sample& sample) const override;
  void read_filler(Sample& sample) const override { base().read_filler(sample); }

  const GptDataset& base() const { return *parts_.front(); }
  const std::vector<std::unique_ptr<const GptDataset>>& parts() const { return parts_; }

 private:
  std::vector<std::unique_ptr<const GptDataset>> parts_;
  std::vector<int64_t> ends_;  // cumulative number of samples up to each part
};

}  // namespace megatron::data
