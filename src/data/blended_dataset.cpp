#include "data/blended_dataset.h"

#include <algorithm>

#include "base/error.h"

namespace megatron::data {

BlendedDataset::BlendedDataset(std::string name, std::vector<Component> parts, BlendIndex index)
    : name_(std::move(name)), parts_(std::move(parts)), index_(std::move(index)) {
  MG_ASSERT(parts_.size() == index_.counts.size());
  for (size_t d = 0; d < parts_.size(); ++d) {
    MG_CHECK(index_.counts[d] <= parts_[d].set->size(),
             "the {} blend takes {} samples of {}, which has only {}: raise "
             "--mid-level-dataset-surplus",
             name_, index_.counts[d], parts_[d].name, parts_[d].set->size());
  }
}

void BlendedDataset::read(int64_t k, Sample& sample) const {
  MG_CHECK(k >= 0 && k < size(), "sample {} does not exist; the {} blend has {} samples", k, name_,
           size());
  const auto i = static_cast<size_t>(k);
  parts_[static_cast<size_t>(index_.set[i])].set->read(index_.sample[i], sample);
}

void BlendedDataset::read_filler(Sample& sample) const {
  read(0, sample);
  std::fill(sample.loss_mask.begin(), sample.loss_mask.end(), 0.0f);
}

}  // namespace megatron::data
