// Codes of weights that data-parallel ranks gather: of 8 bits (--fp8-param-gather), half as many
// bytes as bf16, or of 4 bits (--fp4-param-gather), a quarter.
#pragma once

#include <array>
#include <vector>

#include "kernels/matrix_codes.h"
#include "parallel/bucket_layout.h"
#include "parallel/data_parallel.h"

namespace megatron::parallel {

// Bits of the codes of a trainable weight that is quantised with one set of codes for all its
// products: 8 for tensorwise, delayed and blockwise, 4 for nvfp4. 0: there is none. mxfp8 has
// others for each axis, and so have experts in nvfp4 whose blocks end within 16 rows.
int code_bits(const Parameter& parameter);

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
//
// In nvfp4, products take the scales of the tensor and of its blocks from the whole weight as it
// was (LowPrecision::weight_scale, weight_maxima), since small scales of e4m3, which are few, could
// follow from decoded values otherwise. Decoding rounds q times s / scale three times, as above,
// and numbers of e2m1 are at least 1/8 of q away from the middle to the next. The exception are
// tensors whose elements are all below 2^-104. e2m1 has no NaN, so that one would be lost: a run
// with these codes must end, or not update its weights, at one (settings/rules.cpp).
class WeightCodes {
 public:
  // shards: this rank's part of each bucket. Sets LowPrecision::weight_scale and weight_amax of the
  // weights in coded buckets. All arguments but `shards` must outlive this.
  WeightCodes(const std::vector<Bucket>& buckets, const std::vector<Tensor>& shards,
              const DataParallelGroups& groups, Runtime& runtime);

  // Finds the scales of the shards' values. Collective, in at most one call for dense weights and
  // one for experts, and another one of each over tensor-parallel ranks.
  void find_scales();
  // codes: u8, those of the shard of the bucket.
  void encode(size_t bucket, const Tensor& codes) const;
  // codes: u8, those of the elements of the bucket, values: as many as elements.
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
    Tensor amax;    // f32 0-d: of the tensor, where its scale follows from it

    Parameter& weight() const { return placed->placed->parameter; }
    LowPrecision& how() const { return *weight().low_precision; }
    // What kernels::EncodePartArgs calls `scales` and `scale`.
    Tensor scales() const;
    Tensor scale() const;
  };
  // The largest elements of the weights with the same replicas: f32 [of_tensors], of tensorwise and
  // nvfp4 weights; then, up to `reduced`, of the blocks of nvfp4 and blockwise ones; then of
  // delayed ones, whose scales do not follow from them. how: that of one of the first.
  struct Maxima {
    Tensor all;
    int64_t of_tensors = 0, reduced = 0;
    const LowPrecision* how = nullptr;
  };
  Entry make_entry(const std::vector<Bucket>& buckets, size_t bucket, const Bucket::Entry& placed,
                   const Tensor& shard) const;
  void lay_out_maxima(bool expert);
  void find_maxima(const Entry& entry) const;
  void reduce(const Maxima& maxima, bool expert) const;

  DataParallelGroups groups_;
  Runtime& runtime_;
  std::vector<Entry> entries_;    // by bucket
  std::array<Maxima, 2> maxima_;  // dense, expert
};

}  // namespace megatron::parallel
