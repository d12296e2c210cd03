#include "nn/relative_positions.h"

#include <algorithm>
#include <cmath>

#include "ops/distance_bias.h"

namespace megatron::nn {
namespace {

// A bucket of one direction. Logarithms are f32, as in published implementations: they decide where
// a bucket ends.
int64_t bucket(int64_t distance, int64_t buckets, int64_t max_distance) {
  const int64_t exact = buckets / 2;
  if (distance < exact) return distance;
  const float share =
      std::log(static_cast<float>(distance) / static_cast<float>(exact)) /
      static_cast<float>(std::log(static_cast<double>(max_distance) / static_cast<double>(exact)));
  const auto further = static_cast<int64_t>(share * static_cast<float>(buckets - exact));
  return std::min(exact + further, buckets - 1);
}

}  // namespace

std::vector<int32_t> bucket_of_distance(const RelativeBuckets& b, bool two_sided) {
  const int64_t one_way = two_sided ? b.buckets / 2 : b.buckets;
  std::vector<int32_t> buckets;
  for (int64_t d = -b.max_distance; d <= b.max_distance; ++d) {
    const int64_t length = two_sided ? std::abs(d) : std::max<int64_t>(-d, 0);
    const int64_t first = two_sided && d > 0 ? one_way : 0;
    buckets.push_back(static_cast<int32_t>(first + bucket(length, one_way, b.max_distance)));
  }
  return buckets;
}

RelativePositions::RelativePositions(Builder& builder, const std::string& name,
                                     const RelativeBuckets& buckets, bool two_sided, int64_t heads,
                                     parallel::Init init)
    : table_(builder.add(name + ".relative_bias.weight", {buckets.buckets, heads}, init,
                         {.divisions = {{.axis = 1, .blocks = {heads}}}})) {
  const std::vector<int32_t> of_distance = bucket_of_distance(buckets, two_sided);
  Runtime& runtime = builder.runtime();
  bucket_of_distance_ =
      Tensor::empty(runtime.arena(MemoryClass::parameters), {std::ssize(of_distance)}, DType::i32,
                    "relative_positions.buckets");
  if (runtime.device().has_data())
    copy_from(bucket_of_distance_, std::span<const int32_t>(of_distance), runtime.stream());
}

Var RelativePositions::operator()(Tape& tape) const {
  return ops::distance_bias(tape, bucket_of_distance_, table_);
}

}  // namespace megatron::nn
