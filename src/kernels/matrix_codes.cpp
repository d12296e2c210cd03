#include "kernels/matrix_codes.h"

#include "kernels/check_rules.h"

namespace megatron::kernels {
namespace {

// values: x or out.
void check_part(const Rules& rules, const MatrixPart& part, const Tensor& values,
                const Tensor& blocks) {
  rules.floats(values, 1, "values [N] contiguous");
  rules.require(values.dtype() != DType::f16, "values of bf16, f32 (f64)");
  rules.require(part.begin >= 0 && part.columns > 0 && part.edge >= 0, "a part of a matrix");
  rules.require(blocks.defined() && blocks.is_contiguous() && blocks.dtype() == DType::f32,
                "numbers of blocks f32");
  const int64_t n = values.elements(), last_row = (part.begin + n - 1) / part.columns;
  const int64_t ends =
      part.edge == 0 ? 1
                     : (last_row / part.edge + 1) * ((part.columns + part.edge - 1) / part.edge);
  rules.require(n == 0 || ends <= blocks.elements(), "a number for each block");
}

void check_codes(const Rules& rules, LowFormat format, const Tensor& codes, const Tensor& values) {
  rules.dense(codes, values.shape(), DType::u8, "codes u8 [N]");
  rules.require(format != LowFormat::e2m1, "a format of 8 bits");
}

}  // namespace

void check(const PartAmaxArgs& args) {
  check_part(Rules("part_amax", args), args.part, args.x, args.maxima);
}

void check(const EncodePartArgs& args) {
  const Rules rules("encode_part", args);
  check_part(rules, args.part, args.x, args.scales);
  check_codes(rules, args.format, args.codes, args.x);
}

void check(const DecodePartArgs& args) {
  const Rules rules("decode_part", args);
  check_part(rules, args.part, args.out, args.scales);
  check_codes(rules, args.format, args.codes, args.out);
}

}  // namespace megatron::kernels
