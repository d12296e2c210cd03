// The host's norms; contracts in kernels/norm.h.
#pragma once

#include "device/stream.h"
#include "kernels/norm.h"
#include "kernels/table.h"

namespace megatron::kernels::cpu {

template <class T>
const T* data_or_null(const Tensor& tensor) {
  return tensor.defined() ? tensor.data<T>() : nullptr;
}

void add_rms_norm(const AddNormArgs& args, Stream& stream);
void add_rms_norm_backward(const AddNormBackwardArgs& args, Stream& stream);
void add_layer_norm(const AddNormArgs& args, Stream& stream);
void add_layer_norm_backward(const AddNormBackwardArgs& args, Stream& stream);
// What a backward call takes of the scratch arena: partial sums of rows.
struct NormPartials {
  Tensor dweights, dbiases;  // dbiases: undefined where there is no bias
};
NormPartials norm_backward_scratch(const AddNormBackwardArgs& args, NormKind kind, Stream& stream);

}  // namespace megatron::kernels::cpu
