#include "kernels/epilogue.h"

namespace megatron::kernels {

const Tensor& sums_of(const GemmArgs& args) {
  return args.epilogue == Epilogue::gelu && args.aux.defined() ? args.aux : args.out;
}

void finish_gemm(const GemmArgs& args, const Table& parts, Stream& stream) {
  if (args.epilogue == Epilogue::gelu)
    parts.activation(
        {.function = Activation::gelu_tanh, .gated = false, .x = sums_of(args), .out = args.out},
        stream);
  if (args.epilogue == Epilogue::gelu_gradient)
    parts.activation_backward({.function = Activation::gelu_tanh,
                               .gated = false,
                               .x = args.aux,
                               .dout = args.out,
                               .dx = args.out},
                              stream);
  if (args.bias_gradient.out.defined())
    parts.column_sum({.x = args.a, .out = args.bias_gradient}, stream);
}

void gemm_by_parts(const GemmArgs& args, const Table& parts, Stream& stream) {
  GemmArgs product = args;
  product.epilogue = Epilogue::none;
  product.aux = {};
  product.bias_gradient = {};
  product.out = sums_of(args);
  parts.gemm(product, stream);
  finish_gemm(args, parts, stream);
}

}  // namespace megatron::kernels
