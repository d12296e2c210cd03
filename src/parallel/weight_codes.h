// Codes of 8 bits of weights that data-parallel ranks gather (--fp8-param-gather), half as many
// bytes as bf16.
#pragma once

#include <array>
#include <vector>

#include "kernels/matrix_codes.h"
#include "parallel/bucket_layout.h"
#include "parallel/data_parallel.h"

namespace megatron::parallel {

// True for trainable weights that are quantised with one set of codes for all their products:
// tensorwise, delayed and blockwise. mxfp8 has others for each axis, and nvfp4 for each product.
bool has_codes(const Parameter& parameter);

// Each rank encodes its shard with the scales that the whole weight has, and decodes those of all
// ranks to values of the weight's type. Products with these values are the same in every bit, since
// quantising a decoded value with the same scale s gives its number q again. Decoding rounds q
// times 1 / s three times, to f32, f32 and the weight's type, and quantising once: in bf16, with 8
// bits, the product is off by less than 2^-7 of q. The middle between q and the next number of e4m3
// is at least 2^-5 of q away, or more among the smallest numbers, whose spacing is constant; beyond
// the largest, numbers saturate. Only a scale above 2^120, of a tensor whose elements are all below
// 2^-111, leaves the range of bf16. Scales of blocks are powers of two, so that decoded values are
// exact. If the largest number of a block is rounded down to 224, its scale doubles when the block
// is quantised again: so do all numbers, and the values stay.
class WeightCodes {
 public:
  // shards: this rank's part of each bucket. Sets LowPrecision::weight_scale and weight_amax of the
  // weights in coded buckets. All arguments but `shards` must outlive this.
  WeightCodes(const std::vector<Bucket>& buckets, const std::vector<Tensor>& shards,
              const DataParallelGroups& groups, Runtime& runtime);

  // Finds the scales of the shards' values. Collective, in at most one call for dense weights and
  // one for experts, and another one of each over tensor-parallel ranks.
  void find_scales();
  // codes: u8 [shard of the bucket].
  void encode(size_t bucket, const Tensor& codes) const;
  // codes: u8 [elements of the bucket], values: as many.
  void decode(size_t bucket, const Tensor& codes, const Tensor& values) const;

 private:
  struct Entry {
    size_t bucket = 0;
    const Bucket::Entry* placed = nullptr;
    bool expert = false;
    Tensor x;           // [N]: this rank's elements
    int64_t begin = 0;  // the first of them, in the bucket's shard
    kernels::MatrixPart part;
    Tensor maxima;  // f32 [blocks]

    Parameter& weight() const { return placed->placed->parameter; }
    LowPrecision& how() const { return *weight().low_precision; }
    Tensor scales() const;  // of its codes
  };
  // The largest elements of the weights with the same replicas: f32 [of_tensors], of tensorwise
  // weights; then, up to `reduced`, of the blocks of others; then of delayed ones, whose scales do
  // not follow from them. how: that of a tensorwise weight.
  struct Maxima {
    Tensor all;
    int64_t of_tensors = 0, reduced = 0;
    const LowPrecision* how = nullptr;
  };
  Entry make_entry(const std::vector<Bucket>& buckets, size_t bucket, const Bucket::Entry& placed,
                   const Tensor& shard) const;
  void find_maxima(const Entry& entry) const;
  void reduce(const Maxima& maxima, bool expert) const;

  DataParallelGroups groups_;
  Runtime& runtime_;
  std::vector<Entry> entries_;    // by bucket
  std::array<Maxima, 2> maxima_;  // dense, expert
};

}  // namespace megatron::parallel
