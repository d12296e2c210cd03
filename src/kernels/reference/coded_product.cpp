#include "kernels/coded_product.h"

#include "kernels/reference/block_codes.h"
#include "kernels/reference/elements.h"
#include "kernels/reference/kernels.h"

namespace megatron::kernels::reference {
namespace {

float stored_scale(const CodedOperand& operand, int64_t index) {
  return scale_type(operand.layout) == DType::f32
             ? scale_value(operand.layout, operand.scales.data<float>()[index])
             : scale_value(operand.layout, operand.scales.data<uint8_t>()[index]);
}

// The elements without the tensor's scale.
std::vector<float> decoded(const CodedOperand& operand) {
  const int64_t rows = operand.rows(), depth = operand.depth();
  const bool halves = operand.format == LowFormat::e2m1;
  const std::vector<int64_t> codes = load_integers(operand.codes);
  std::vector<float> values;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t k = 0; k < depth; ++k) {
      const int64_t at = r * depth + k,
                    code = halves ? codes[at / 2] >> at % 2 * 4 & 15 : codes[at];
      float value = decode(operand.format, static_cast<uint8_t>(code));
      if (operand.layout != ScaleLayout::tensor)
        value *= stored_scale(
            operand, scale_index(operand.layout, rows, depth, r, k / scaled_depth(operand.layout)));
      values.push_back(value);
    }
  return values;
}

}  // namespace

void encode_operand(const EncodeOperandArgs& args, Stream& stream) {
  if (args.transpose_out.codes.defined()) encode_operand(for_transpose(args), stream);
  const CodedOperand& out = args.out;
  const bool blocks = out.layout != ScaleLayout::tensor;
  const QuantizeArgs call = quantization_of(args);
  const BlockCodes found = block_codes(call);
  const int64_t columns = args.x.size(1), across = ceil_div(columns, call.out.columns);
  const int64_t rows = out.rows(), depth = out.depth();
  std::vector<int64_t> codes(static_cast<size_t>(out.codes.elements()));
  std::vector<double> scales(blocks ? static_cast<size_t>(out.scales.elements()) : 0);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t k = 0; k < depth; ++k) {
      const int64_t at = r * depth + k, i = args.transposed ? k : r, j = args.transposed ? r : k;
      const int64_t code = found.codes[i * columns + j];
      if (out.format == LowFormat::e2m1) codes[at / 2] |= code << at % 2 * 4;
      else codes[at] = code;
      if (blocks)
        scales[scale_index(out.layout, rows, depth, r, k / scaled_depth(out.layout))] =
            found.scales[i / call.out.rows * across + j / call.out.columns];
    }
  store_integers(out.codes, codes);
  if (!blocks) return;
  if (out.scales.dtype() == DType::f32) return store(out.scales, scales);
  store_integers(out.scales, std::vector<int64_t>(scales.begin(), scales.end()));
}

void coded_gemm(const CodedGemmArgs& args, Stream& stream) {
  const std::vector<float> a = decoded(args.a), b = decoded(args.b), bias = load<float>(args.bias);
  const auto factor = product_factor<float>(args.a.tensor_scale, args.b.tensor_scale);
  const int64_t rows = args.out.size(0), columns = args.out.size(1), depth = args.a.depth();
  std::vector<float> out(static_cast<size_t>(args.out.elements()));
  for_rows(stream, rows, 16, [&](int64_t i) {
    for (int64_t j = 0; j < columns; ++j) {
      float sum = 0;
      for (int64_t k = 0; k < depth; ++k) sum += a[i * depth + k] * b[j * depth + k];
      out[i * columns + j] = sum * factor + (bias.empty() ? 0 : bias[j]);
    }
  });
  store_sum({args.out, args.beta}, std::move(out));
}

}  // namespace megatron::kernels::reference
