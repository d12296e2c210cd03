// Data parallelism: one contiguous f32 (f64) gradient buffer, cut in buckets that are reduced as
// soon as they are final.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "autograd/tape.h"
#include "comm/group.h"
#include "parallel/placement.h"

namespace megatron::parallel {

struct GradientBufferOptions {
  int64_t bucket_bytes = 40 << 20;
};

// Gives every trainable parameter its accumulators (uses[i].grad): use 0 of all parameters lie in
// one buffer, in the reverse of the order given (the order in which backward makes them final), so
// that a bucket is a contiguous range; further uses (tied weights) have tensors of their own and
// are added to use 0, in order, once all micro-batches are done. The sum over the group is taken of
// the raw gradients; the caller divides by the number of tokens.
class GradientBuffer final : public GradientListener {
 public:
  GradientBuffer(std::vector<Parameter*> parameters, comm::Group& group, Runtime& runtime,
                 GradientBufferOptions options = {});

  void begin_step(
      int micro_batches);  // the first gradient of each accumulator is stored, later ones add
  void gradient_final(Parameter& parameter, int micro_batch)
      override;  // starts a bucket's reduction after the last micro-batch
  // After the last backward: accumulators that got no gradient become zero, what was not reduced
  // is, and all reductions are waited for.
  void finish();

  const Tensor& buffer() const {
    return buffer_;
  }  // [elements], padded with zeros between parameters to 64 bytes
  int buckets() const { return static_cast<int>(buckets_.size()); }

 private:
  struct Bucket {
    int64_t begin = 0, end = 0;  // elements of the buffer
    std::vector<Parameter*> parameters;
    int final_parameters = 0;
    bool reduced = false;
  };
  void complete(Parameter& parameter);
  void reduce(Bucket& bucket);

  std::vector<Parameter*> parameters_;
  comm::Group& group_;
  Runtime& runtime_;
  Tensor buffer_;
  std::vector<Bucket> buckets_;
  std::unordered_map<const Parameter*, size_t> bucket_of_;
  std::vector<comm::Work> pending_;
  int micro_batches_ = 0;
};

}  // namespace megatron::parallel
