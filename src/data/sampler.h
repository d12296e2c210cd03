// Selects the samples that a data-parallel rank takes next.
#pragma once

#include <cstdint>
#include <vector>

namespace megatron::data {

// torch.randperm(n) of a CPU generator seeded with `seed`: MT19937; the number at i is swapped with
// the one at i + draw % (n - i). From n = (2^32 - 1) / 20 on, 64-bit draws and the inside-out form.
std::vector<int64_t> random_permutation(int64_t n, uint64_t seed);

class Sampler {
 public:
  virtual ~Sampler() = default;
  // Next micro-batch of this rank; false at the end.
  virtual bool next(std::vector<int64_t>& indices) = 0;
  virtual int64_t consumed() const = 0;  // samples over all ranks: the whole state
};

// Arguments common to all samplers. All ranks together take micro_batch_size * size samples at a
// time.
struct SamplerShape {
  int64_t total = 0;  // samples of the data set
  int64_t consumed = 0;
  int64_t micro_batch_size = 1;
  int64_t rank = 0, size = 1;  // in the data-parallel group
};

// Samples in order (--dataloader-type single). Micro-batch i of all ranks together is the next
// micro_batch_size * size indices from `consumed` on; rank r takes the r-th part.
class SequentialSampler final : public Sampler {
 public:
  // Throws Error unless 0 <= consumed < total, sizes are positive and rank < size. Without
  // drop_last the last micro-batch is short, or empty on some ranks.
  explicit SequentialSampler(const SamplerShape& shape, bool drop_last = true);

  bool next(std::vector<int64_t>& indices) override;
  int64_t consumed() const override { return shape_.consumed; }

 private:
  SamplerShape shape_;
  bool drop_last_;
};

// Epochs in random order (--dataloader-type cyclic), endlessly. An epoch has the complete
// micro-batches of all ranks, total - total % (micro_batch_size * size) samples; epoch e is ordered
// by random_permutation(n, e).
//   sharded      rank r owns n = total / (micro_batch_size * size) * micro_batch_size samples from
//                r n on: which samples meet in a step depends on the number of ranks
//   not sharded  n = total / micro_batch_size * micro_batch_size; rank r takes places r, r + size,
//                ... of what is left of the permutation
// (If n is not a multiple of micro_batch_size * size, Megatron-LM gives the first ranks one more
// micro-batch of a permutation that is not sharded, and its ranks then disagree about the epoch;
// here all begin the next one together.)
class CyclicSampler final : public Sampler {
 public:
  // Throws Error in the same cases as SequentialSampler (but consumed may be any), for a data set
  // smaller than one micro-batch of all ranks, and for `consumed` inside such a micro-batch.
  CyclicSampler(const SamplerShape& shape, bool sharded);

  bool next(std::vector<int64_t>& indices) override;
  int64_t consumed() const override { return shape_.consumed; }
  int64_t epoch() const { return shape_.consumed / epoch_samples_; }

 private:
  SamplerShape shape_;
  bool sharded_;
  int64_t together_ = 1, epoch_samples_ = 1;
  int64_t ordered_ = -1;  // epoch whose order is in memory
  std::vector<int64_t> order_;
};

// Every sample once (--full-validation): rank r takes r, r + size, ... one at a time.
class FullPassSampler final : public Sampler {
 public:
  FullPassSampler(int64_t total, int64_t rank, int64_t size);

  bool next(std::vector<int64_t>& indices) override;
  int64_t consumed() const override;

 private:
  int64_t total_, rank_, size_, next_;
};

}  // namespace megatron::data
