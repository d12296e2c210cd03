// Assignment of tensors to the ranks that write them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/save_plan.h"

namespace megatron::checkpoint {

// One bit per tensor and rank: set if the rank holds the whole tensor.
class WholeHolders {
 public:
  // Collective; reads PlannedTensor::whole.
  WholeHolders(std::span<const PlannedTensor* const> tensors, comm::Group& ranks, Stream& stream);

  bool all() const { return all_; }  // every rank holds every tensor whole
  bool holds(int rank, size_t tensor) const {
    const int64_t word = bits_[static_cast<size_t>(rank) * words_ + tensor / 64];
    return (word >> (tensor % 64)) & 1;
  }

 private:
  size_t words_ = 0;  // words per rank
  std::vector<int64_t> bits_;
  bool all_ = true;
};

// Sets PlannedTensor::writer. In order of decreasing size, each tensor goes to the rank with the
// fewest bytes so far among those that hold it whole; if none of these has room within its equal
// share of the bytes, to the rank with the fewest bytes of all.
void assign_writers(std::span<PlannedTensor* const> tensors, int ranks,
                    const WholeHolders& holders);

}  // namespace megatron::checkpoint
