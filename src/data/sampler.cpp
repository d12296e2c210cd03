#include "data/sampler.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include "base/error.h"

namespace megatron::data {
namespace {

void check_shape(const SamplerShape& s) {
  MG_CHECK(s.total > 0, "the data set has {} samples: there is nothing to train on", s.total);
  MG_CHECK(s.micro_batch_size > 0, "--micro-batch-size is {}; it must be at least 1",
           s.micro_batch_size);
  MG_CHECK(s.rank >= 0 && s.rank < s.size, "data-parallel rank {} does not exist; there are {}",
           s.rank, s.size);
  MG_CHECK(s.consumed >= 0, "the number of consumed samples is {}; it cannot be negative",
           s.consumed);
}

}  // namespace

std::vector<int64_t> random_permutation(int64_t n, uint64_t seed) {
  MG_CHECK(n >= 0, "the length of a permutation is {}; it cannot be negative", n);
  std::mt19937 draw(static_cast<uint32_t>(seed));
  std::vector<int64_t> order(static_cast<size_t>(n));
  if (n < std::numeric_limits<uint32_t>::max() / 20) {
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = 0; i + 1 < order.size(); ++i)
      std::swap(order[i], order[i + draw() % (order.size() - i)]);
    return order;
  }
  for (size_t i = 0; i < order.size(); ++i) {
    const uint64_t high = draw();
    const size_t at = (high << 32 | draw()) % (i + 1);
    order[i] = order[at];
    order[at] = static_cast<int64_t>(i);
  }
  return order;
}

SequentialSampler::SequentialSampler(const SamplerShape& shape, bool drop_last)
    : shape_(shape), drop_last_(drop_last) {
  check_shape(shape);
  MG_CHECK(shape.consumed < shape.total,
           "all samples of the data set are consumed ({} of {}): none is left", shape.consumed,
           shape.total);
}

bool SequentialSampler::next(std::vector<int64_t>& indices) {
  indices.clear();
  const int64_t together = shape_.micro_batch_size * shape_.size;
  const int64_t count = std::min(together, shape_.total - shape_.consumed);
  if (count <= 0 || (drop_last_ && count < together)) return false;
  const int64_t begin = std::min(shape_.rank * shape_.micro_batch_size, count),
                end = std::min(begin + shape_.micro_batch_size, count);
  for (int64_t i = begin; i < end; ++i) indices.push_back(shape_.consumed + i);
  shape_.consumed += count;
  return true;
}

CyclicSampler::CyclicSampler(const SamplerShape& shape, bool sharded)
    : shape_(shape), sharded_(sharded) {
  check_shape(shape);
  together_ = shape.micro_batch_size * shape.size;
  epoch_samples_ = shape.total - shape.total % together_;
  MG_CHECK(epoch_samples_ > 0,
           "--dataloader-type cyclic: the data set has {} samples, fewer than the {} that "
           "--micro-batch-size {} x {} ranks take at once; lower one of these",
           shape.total, together_, shape.micro_batch_size, shape.size);
  MG_CHECK(shape.consumed % epoch_samples_ % together_ == 0,
           "--dataloader-type cyclic: {} consumed samples end inside a micro-batch, each of "
           "which takes {} of the {} samples of an epoch; resume with the same "
           "--micro-batch-size and number of ranks as before",
           shape.consumed, together_, epoch_samples_);
}

bool CyclicSampler::next(std::vector<int64_t>& indices) {
  const int64_t micro = shape_.micro_batch_size, rank = shape_.rank;
  if (ordered_ != epoch()) {
    ordered_ = epoch();
    const int64_t owned = sharded_ ? epoch_samples_ / shape_.size : shape_.total / micro * micro;
    order_ = random_permutation(owned, static_cast<uint64_t>(ordered_));
  }
  const int64_t at = shape_.consumed % epoch_samples_;  // position in the epoch
  indices.clear();
  for (int64_t i = 0; i < micro; ++i) {
    const int64_t place = sharded_ ? at / shape_.size + i : at + rank + i * shape_.size;
    const int64_t first = sharded_ ? rank * (epoch_samples_ / shape_.size) : 0;
    indices.push_back(first + order_[static_cast<size_t>(place)]);
  }
  shape_.consumed += together_;
  return true;
}

FullPassSampler::FullPassSampler(int64_t total, int64_t rank, int64_t size)
    : total_(total), rank_(rank), size_(size), next_(rank) {
  check_shape({.total = total, .rank = rank, .size = size});
}

bool FullPassSampler::next(std::vector<int64_t>& indices) {
  indices.clear();
  if (next_ >= total_) return false;
  indices.push_back(next_);
  next_ += size_;
  return true;
}

int64_t FullPassSampler::consumed() const { return std::min(total_, next_ - rank_); }

}  // namespace megatron::data
