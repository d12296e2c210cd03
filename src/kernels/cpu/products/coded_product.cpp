#include "kernels/coded_product.h"

#include <array>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/scratch.h"

namespace megatron::kernels::cpu {
namespace {

// Writes the rows of an operand from the codes of x.
void store_codes(const EncodeOperandArgs& args, const uint8_t* codes, Stream& stream) {
  const CodedOperand& out = args.out;
  const int64_t depth = out.depth(), row_step = args.transposed ? 1 : depth,
                step = args.transposed ? out.rows() : 1;
  auto* const stored = out.codes.data<uint8_t>();
  for_blocks(stream, out.rows(), rows_per_block(depth), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const uint8_t* from = codes + r * row_step;
      if (out.format == LowFormat::e2m1) {
        for (int64_t k = 0; k < depth; k += 2)
          stored[(r * depth + k) / 2] =
              static_cast<uint8_t>(from[k * step] | from[(k + 1) * step] << 4);
      } else {
        for (int64_t k = 0; k < depth; ++k) stored[r * depth + k] = from[k * step];
      }
    }
  });
}

// Writes the scales of an operand from those of x's blocks.
template <class T>
void store_scales(const EncodeOperandArgs& args, const QuantizedBlocks& blocks) {
  const CodedOperand& out = args.out;
  const int64_t rows = out.rows(), depth = out.depth(), along = scaled_depth(out.layout),
                across = blocks.scales.size(1);
  auto* const stored = out.scales.data<T>();
  std::fill_n(stored, out.scales.elements(), T(0));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t b = 0; b < ceil_div(depth, along); ++b) {
      const int64_t i = (args.transposed ? b * along : r) / blocks.rows,
                    j = (args.transposed ? r : b * along) / blocks.columns;
      stored[scale_index(out.layout, rows, depth, r, b)] = blocks.scales.data<T>()[i * across + j];
    }
}

void decode_operand(const CodedOperand& operand, const Tensor& values, Stream& stream) {
  std::array<float, 256> table;
  for (size_t code = 0; code < table.size(); ++code)
    table[code] = decode(operand.format, static_cast<uint8_t>(code));
  const bool halves = operand.format == LowFormat::e2m1;
  const int64_t rows = operand.rows(), depth = operand.depth(),
                along =
                    operand.layout == ScaleLayout::tensor ? depth : scaled_depth(operand.layout);
  const auto scale_of = [&](int64_t r, int64_t b) {
    if (operand.layout == ScaleLayout::tensor) return 1.F;
    const int64_t at = scale_index(operand.layout, rows, depth, r, b);
    return operand.scales.dtype() == DType::f32
               ? scale_value(operand.layout, operand.scales.data<float>()[at])
               : scale_value(operand.layout, operand.scales.data<uint8_t>()[at]);
  };
  const auto* from = operand.codes.data<uint8_t>();
  auto* to = values.data<bf16>();
  for_blocks(stream, rows, rows_per_block(depth), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t b = 0; b * along < depth; ++b) {
        const float scale = scale_of(r, b);
        for (int64_t k = b * along; k < std::min(depth, (b + 1) * along); ++k) {
          const int64_t i = r * depth + k;
          to[i] = bf16(table[halves ? from[i / 2] >> i % 2 * 4 & 15 : from[i]] * scale);
        }
      }
  });
}

}  // namespace

QuantizedBlocks encode_operand_scratch(const EncodeOperandArgs& args, Stream& stream) {
  QuantizedBlocks blocks = quantization_of(args).out;
  blocks.codes = Tensor::empty(stream.scratch(), args.x.shape(), DType::u8, "codes");
  if (args.out.layout == ScaleLayout::tensor) return blocks;
  const Shape grid{ceil_div(args.x.size(0), blocks.rows), ceil_div(args.x.size(1), blocks.columns)};
  blocks.scales =
      Tensor::empty(stream.scratch(), grid, scale_type(args.out.layout), "scales of blocks");
  return blocks;
}

CodedValues coded_gemm_scratch(const CodedGemmArgs& args, Stream& stream) {
  const auto values = [&](const CodedOperand& operand, const char* label) {
    return Tensor::empty(stream.scratch(), {operand.rows(), operand.depth()}, DType::bf16, label);
  };
  return {values(args.a, "coded_gemm a"), values(args.b, "coded_gemm b")};
}

void encode_operand(const EncodeOperandArgs& args, Stream& stream) {
  if (args.transpose_out.codes.defined()) encode_operand(for_transpose(args), stream);
  QuantizeArgs call = quantization_of(args);
  call.out = encode_operand_scratch(args, stream);
  quantize(call, stream);
  store_codes(args, call.out.codes.data<uint8_t>(), stream);
  if (!args.out.scales.defined()) return;
  args.out.scales.dtype() == DType::f32 ? store_scales<float>(args, call.out)
                                        : store_scales<uint8_t>(args, call.out);
}

// The formats' numbers, with the scales of their blocks, are exact in bf16 but for the range.
void coded_gemm(const CodedGemmArgs& args, Stream& stream) {
  const auto [a, b] = coded_gemm_scratch(args, stream);
  decode_operand(args.a, a, stream);
  decode_operand(args.b, b, stream);
  gemm({.a = a,
        .b = b,
        .out = args.out,
        .transpose_b = true,
        .beta = args.beta,
        .bias = args.bias,
        .a_scale = args.a.tensor_scale,
        .b_scale = args.b.tensor_scale},
       stream);
}

}  // namespace megatron::kernels::cpu
