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

// values: x or out.
template <class Args>
void check_codes(const Rules& rules, const Args& args, const Tensor& values) {
  const bool fp4 = args.format == LowFormat::e2m1;
  rules.dense(args.codes, {code_bytes(args.format, values.elements())}, DType::u8,
              fp4 ? "codes u8 [ceil(N / 2)]" : "codes u8 [N]");
  rules.optional(args.scale, {}, DType::f32, "scale f32 0-d");
  rules.require(args.scale.defined() == fp4 && (!fp4 || args.part.edge > 0),
                "e2m1 with blocks and the tensor's scale, others without that");
}

}  // namespace

void check(const PartAmaxArgs& args) {
  check_part(Rules("part_amax", args), args.part, args.x, args.maxima);
}

void check(const EncodePartArgs& args) {
  const Rules rules("encode_part", args);
  check_part(rules, args.part, args.x, args.scales);
  check_codes(rules, args, args.x);
}

void check(const DecodePartArgs& args) {
  const Rules rules("decode_part", args);
  check_part(rules, args.part, args.out, args.scales);
  check_codes(rules, args, args.out);
}

}  // namespace megatron::kernels
