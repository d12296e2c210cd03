#include "kernels/epilogue.h"

namespace megatron::kernels {

void gemm_by_parts(const GemmArgs& args, const Table& parts, Stream& stream) {
  GemmArgs product = args;
  product.epilogue = Epilogue::none;
  product.aux = {};
  product.bias_gradient = {};
  const bool keeps_sums = args.epilogue == Epilogue::gelu && args.aux.defined();
  if (keeps_sums) product.out = args.aux;
  parts.gemm(product, stream);
  if (args.epilogue == Epilogue::gelu)
    parts.activation(
        {.function = Activation::gelu_tanh, .gated = false, .x = product.out, .out = args.out},
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

}  // namespace megatron::kernels
