#include "kernels/cuda/attention/cudnn/graph.h"

namespace megatron::kernels::cuda::cudnn {

const Value& Graph::tensor(int64_t id, const Sizes& sizes, const Sizes& strides,
                           cudnnDataType_t type, bool is_inner, bool is_scalar,
                           cudnnBackendTensorReordering_t order) {
  constexpr int64_t kAlignment = 16;
  Value& value = values_.emplace_back(Descriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR), sizes, strides);
  value.descriptor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, id)
      .set(CUDNN_ATTR_TENSOR_DATA_TYPE, type)
      .set(CUDNN_ATTR_TENSOR_DIMENSIONS, std::span<const int64_t>(sizes))
      .set(CUDNN_ATTR_TENSOR_STRIDES, std::span<const int64_t>(strides))
      .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, kAlignment);
  if (is_inner) value.descriptor.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, true);
  if (is_scalar) value.descriptor.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, true);
  if (order != CUDNN_TENSOR_REORDERING_NONE)
    value.descriptor.set(CUDNN_ATTR_TENSOR_REORDERING_MODE, CUDNN_TYPE_TENSOR_REORDERING_MODE, 1,
                         &order);
  value.descriptor.finalize();
  return value;
}

const Value& Graph::stored(int64_t id, const Sizes& sizes, const Sizes& strides,
                           cudnnDataType_t type) {
  return tensor(id, sizes, strides, type, false, false);
}

const Value& Graph::sums(int64_t id, const Sizes& sizes) {
  return tensor(id, sizes, dense(sizes), CUDNN_DATA_FLOAT, false, false,
                CUDNN_TENSOR_REORDERING_F16x16);
}

const Value& Graph::scalar(int64_t id) {
  return tensor(id, {1, 1, 1, 1}, {1, 1, 1, 1}, CUDNN_DATA_FLOAT, false, true);
}

const Value& Graph::inner(const Sizes& sizes, const Sizes& strides, cudnnDataType_t type) {
  return tensor(next_inner_++, sizes, strides, type, true, false);
}

Descriptor& Graph::operation(cudnnBackendDescriptorType_t type) {
  return operations_.emplace_back(type);
}

Descriptor& Graph::pointwise(cudnnPointwiseMode_t mode, cudnnDataType_t computed, const Value& x,
                             const Value& out, int64_t axis) {
  Descriptor& kind = kinds_.emplace_back(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  kind.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode)
      .set(CUDNN_ATTR_POINTWISE_MATH_PREC, computed);
  if (axis >= 0) kind.set(CUDNN_ATTR_POINTWISE_AXIS, axis);
  kind.finalize();
  return operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kind)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x.descriptor)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, out.descriptor);
}

const Value& Graph::unary(cudnnPointwiseMode_t mode, const Value& x, const Value& out) {
  pointwise(mode, CUDNN_DATA_FLOAT, x, out).finalize();
  return out;
}

const Value& Graph::binary(cudnnPointwiseMode_t mode, const Value& x, const Value& y,
                           const Value& out, cudnnDataType_t computed) {
  pointwise(mode, computed, x, out)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, y.descriptor)
      .finalize();
  return out;
}

const Value& Graph::select(const Value& mask, const Value& x, const Value& otherwise,
                           const Value& out) {
  pointwise(CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, x, out)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, otherwise.descriptor)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, mask.descriptor)
      .finalize();
  return out;
}

const Value& Graph::index(const Value& like, int64_t axis) {
  const Value& out = inner(like, CUDNN_DATA_INT32);
  pointwise(CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, like, out, axis).finalize();
  return out;
}

const Value& Graph::matmul(const Value& a, const Value& b, const Value& out) {
  Descriptor& kind = kinds_.emplace_back(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  kind.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT).finalize();
  operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
      .set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, a.descriptor)
      .set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, b.descriptor)
      .set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, out.descriptor)
      .set(CUDNN_ATTR_OPERATION_MATMUL_DESC, kind)
      .finalize();
  return out;
}

const Value& Graph::reduce(cudnnReduceTensorOp_t mode, const Value& x, const Value& out) {
  Descriptor& kind = kinds_.emplace_back(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  kind.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode)
      .set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT)
      .finalize();
  operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)
      .set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x.descriptor)
      .set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, out.descriptor)
      .set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, kind)
      .finalize();
  return out;
}

const Value& Graph::reshape(const Value& x, const Value& out) {
  operation(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)
      .set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x.descriptor)
      .set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, out.descriptor)
      .finalize();
  return out;
}

}  // namespace megatron::kernels::cuda::cudnn
