// A graph of operations in cuDNN's form. Tensors have four dimensions. Inner tensors are never
// stored.
#pragma once

#include <array>
#include <deque>
#include <vector>

#include "kernels/cuda/attention/cudnn/descriptor.h"

namespace megatron::kernels::cuda::cudnn {

using Sizes = std::array<int64_t, 4>;

struct Value {
  Descriptor descriptor;
  Sizes sizes, strides;
};

inline Sizes dense(const Sizes& s) { return {s[1] * s[2] * s[3], s[2] * s[3], s[3], 1}; }

class Graph {
 public:
  // A tensor in memory, aligned to 16 bytes. `id` identifies it when the plan is run.
  const Value& stored(int64_t id, const Sizes& sizes, const Sizes& strides, cudnnDataType_t type);
  // f32 sums in memory that must be zero before the plan is run; thread blocks add to them in any
  // order. Contiguous, but in a layout that only the library knows.
  const Value& sums(int64_t id, const Sizes& sizes);
  // An f32 in host memory that is read when the plan is run.
  const Value& scalar(int64_t id);
  const Value& inner(const Sizes& sizes, const Sizes& strides, cudnnDataType_t type);
  const Value& inner(const Value& like, cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    return inner(like.sizes, like.strides, type);
  }

  // Each returns `out`. Computed in f32 unless stated otherwise.
  const Value& unary(cudnnPointwiseMode_t mode, const Value& x, const Value& out);
  const Value& binary(cudnnPointwiseMode_t mode, const Value& x, const Value& y, const Value& out,
                      cudnnDataType_t computed = CUDNN_DATA_FLOAT);
  const Value& select(const Value& mask, const Value& x, const Value& otherwise, const Value& out);
  const Value& index(const Value& like, int64_t axis);  // i32: the element's index along the axis
  const Value& matmul(const Value& a, const Value& b, const Value& out);
  const Value& reduce(cudnnReduceTensorOp_t mode, const Value& x, const Value& out);
  const Value& reshape(const Value& x, const Value& out);

  const std::deque<Descriptor>& operations() const { return operations_; }

 private:
  const Value& tensor(int64_t id, const Sizes& sizes, const Sizes& strides, cudnnDataType_t type,
                      bool is_inner, bool is_scalar,
                      cudnnBackendTensorReordering_t order = CUDNN_TENSOR_REORDERING_NONE);
  Descriptor& operation(cudnnBackendDescriptorType_t type);
  Descriptor& pointwise(cudnnPointwiseMode_t mode, cudnnDataType_t computed, const Value& x,
                        const Value& out, int64_t axis = -1);

  int64_t next_inner_ = 1000;
  std::deque<Value> values_;
  std::deque<Descriptor> kinds_;  // operations without their tensors
  std::deque<Descriptor> operations_;
};

}  // namespace megatron::kernels::cuda::cudnn
