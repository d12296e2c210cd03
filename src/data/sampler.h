// Which samples a data-parallel rank takes next.
#pragma once

#include <cstdint>
#include <vector>

namespace megatron::data {

// Samples in order (--dataloader-type single). Micro-batch i of all ranks together is the next
// micro_batch_size * data_parallel_size indices from `consumed` on; rank r takes the r-th part of
// it. The number of consumed samples is the whole state.
class SequentialSampler {
 public:
  // Throws Error unless 0 <= consumed < total, sizes are positive and rank < size.
  SequentialSampler(int64_t total, int64_t consumed, int64_t micro_batch_size,
                    int64_t data_parallel_rank, int64_t data_parallel_size, bool drop_last = true);

  // The next micro-batch of this rank; false at the end. Without drop_last the last one is short,
  // or empty for some ranks.
  bool next(std::vector<int64_t>& indices);
  int64_t consumed() const { return consumed_; }  // of all ranks together

 private:
  int64_t total_, consumed_, micro_batch_size_, rank_, size_;
  bool drop_last_;
};

}  // namespace megatron::data
