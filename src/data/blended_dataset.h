// Samples of several data sets in one combined order.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/blend_index.h"
#include "data/dataset.h"

namespace megatron::data {

class BlendedDataset final : public Dataset {
 public:
  // One part of a blend; a set may be part of it more than once.
  struct Component {
    std::string name;
    std::shared_ptr<const Dataset> set;
  };

  // Throws Error naming the part, its samples and the suggestion if the index needs more samples of
  // it than it has.
  BlendedDataset(std::string name, std::vector<Component> parts, BlendIndex index);

  int64_t size() const override { return static_cast<int64_t>(index_.set.size()); }
  void read(int64_t k, Sample& sample) const override;
  void read_filler(Sample& sample) const override;

  const std::vector<Component>& parts() const { return parts_; }
  const BlendIndex& index() const { return index_; }

 private:
  std::string name_;
  std::vector<Component> parts_;
  BlendIndex index_;
};

}  // namespace megatron::data
