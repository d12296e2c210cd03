#include "kernels/cuda/attention/cudnn/attention_shape.h"

namespace megatron::kernels::cuda::cudnn {
namespace {

// Strides of a part of t [B,T,N,D]. Dimensions of size 1 get the strides of a contiguous tensor.
Strides strides_of(const Tensor& t, int64_t samples, int64_t heads) {
  Strides strides;
  strides.token = t.stride(1);
  strides.head = heads == 1 ? t.size(3) : t.stride(2);
  strides.sample = samples == 1 ? strides.token * t.size(1) : t.stride(0);
  return strides;
}

template <class Args>
AttentionShape common_shape(const Args& args, const LibraryAttentionPart& part) {
  const int64_t group = args.q.size(2) / args.k.size(2);
  AttentionShape shape{
      .batch = part.samples,
      .heads = part.kv_heads * group,
      .kv_heads = part.kv_heads,
      .queries = args.q.size(1),
      .keys = args.k.size(1),
      .width = args.q.size(3),
      .value_width = args.v.size(3),
      .type = args.q.dtype() == DType::bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF,
      .causal = args.causal};
  shape.q = strides_of(args.q, shape.batch, shape.heads);
  shape.k = strides_of(args.k, shape.batch, shape.kv_heads);
  shape.v = strides_of(args.v, shape.batch, shape.kv_heads);
  shape.out = strides_of(args.out, shape.batch, shape.heads);
  return shape;
}

}  // namespace

AttentionShape shape_of(const AttentionArgs& args, const LibraryAttentionPart& part) {
  return common_shape(args, part);
}

AttentionShape shape_of(const AttentionBackwardArgs& args, const LibraryAttentionPart& part) {
  AttentionShape shape = common_shape(args, part);
  shape.dout = strides_of(args.dout, shape.batch, shape.heads);
  shape.dq = strides_of(args.dq, shape.batch, shape.heads);
  shape.dk = strides_of(args.dk, shape.batch, shape.kv_heads);
  shape.dv = strides_of(args.dv, shape.batch, shape.kv_heads);
  return shape;
}

}  // namespace megatron::kernels::cuda::cudnn
