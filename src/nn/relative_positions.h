// Relative positions by buckets of distances (Raffel et al. 2020, section 2.1): attention adds a
// learned number to the score of each head, chosen by the bucket of the key's distance.
#pragma once

#include <string>
#include <vector>

#include "nn/builder.h"

namespace megatron::nn {

// Distances up to half of a direction's buckets have one each; the others grow by a constant factor
// up to max_distance, from which on all share the last one.
struct RelativeBuckets {
  int64_t buckets = 0;  // 0: no relative positions
  int64_t max_distance = 128;
  bool shared = false;  // the table is that of the first layer of the encoder or decoder
  bool operator==(const RelativeBuckets&) const = default;
};

// The buckets of the distances [-max_distance, max_distance] of a key, key minus query; all beyond
// have those of the ends. two_sided: half of the buckets are for keys after the query; otherwise
// those have the bucket of distance 0.
std::vector<int32_t> bucket_of_distance(const RelativeBuckets& buckets, bool two_sided);

// The parameter <name>.relative_bias.weight [buckets, heads], divided by heads among
// tensor-parallel ranks.
class RelativePositions {
 public:
  RelativePositions(Builder& builder, const std::string& name, const RelativeBuckets& buckets,
                    bool two_sided, int64_t heads, parallel::Init init);
  // f32 (f64) [2 max_distance + 1, this rank's heads] (AttentionOptions::bias).
  Var operator()(Tape& tape) const;

 private:
  Weight table_;
  Tensor bucket_of_distance_;  // i32 [2 max_distance + 1]
};

}  // namespace megatron::nn
