#include "data/sampler.h"

#include <algorithm>

#include "base/error.h"

namespace megatron::data {

SequentialSampler::SequentialSampler(int64_t total, int64_t consumed, int64_t micro_batch_size,
                                     int64_t data_parallel_rank, int64_t data_parallel_size,
                                     bool drop_last)
    : total_(total),
      consumed_(consumed),
      micro_batch_size_(micro_batch_size),
      rank_(data_parallel_rank),
      size_(data_parallel_size),
      drop_last_(drop_last) {
  MG_CHECK(total > 0, "the data set has {} samples: there is nothing to train on", total);
  MG_CHECK(consumed >= 0 && consumed < total,
           "{} samples are consumed of a data set of {}: none is left", consumed, total);
  MG_CHECK(micro_batch_size > 0, "micro-batch size {}: at least 1 is needed (--micro-batch-size)",
           micro_batch_size);
  MG_CHECK(data_parallel_rank >= 0 && data_parallel_rank < data_parallel_size,
           "data-parallel rank {} of {}", data_parallel_rank, data_parallel_size);
}

bool SequentialSampler::next(std::vector<int64_t>& indices) {
  indices.clear();
  const int64_t count = std::min(micro_batch_size_ * size_, total_ - consumed_);
  if (count <= 0 || (drop_last_ && count < micro_batch_size_ * size_)) return false;
  const int64_t begin = std::min(rank_ * micro_batch_size_, count),
                end = std::min(begin + micro_batch_size_, count);
  for (int64_t i = begin; i < end; ++i) indices.push_back(consumed_ + i);
  consumed_ += count;
  return true;
}

}  // namespace megatron::data
