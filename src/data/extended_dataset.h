// A GPT data set that serves more samples than it was asked for at first, in an order of which the
// first ones do not depend on how many more.
#pragma once

#include <memory>
#include <vector>

#include "data/gpt_dataset.h"

namespace megatron::data {

// First the data set of `samples`, all that it has built; then, one after the other, data sets of
// 1, 2, 4 ... whole epochs, shuffled by seed + 1, seed + 2 ..., until there are `extended`. (A data
// set that is asked for more at once shuffles other epochs together, so that all its samples come
// in another order.)
class ExtendedDataset final : public Dataset {
 public:
  // Throws Error as GptDataset does.
  ExtendedDataset(std::shared_ptr<const TokenSource> source, const GptDatasetConfig& config,
                  Split split, std::optional<int64_t> samples, int64_t extended);

  int64_t size() const override { return ends_.back(); }
  void read(int64_t k, Sample& sample) const override;
  void read_filler(Sample& sample) const override { base().read_filler(sample); }

  const GptDataset& base() const { return *parts_.front(); }
  const std::vector<std::unique_ptr<const GptDataset>>& parts() const { return parts_; }

 private:
  std::vector<std::unique_ptr<const GptDataset>> parts_;
  std::vector<int64_t> ends_;  // samples of the parts up to each
};

}  // namespace megatron::data
