#include "kernels/noise.h"

#include "kernels/check_rules.h"

namespace megatron::kernels {
namespace {

void check_noise_rows(const Rules& rules, const NoiseRows& rows, int64_t count) {
  rules.require(rows.sample_ids.defined() && rows.sample_ids.rank() == 1, "sample_ids i64 [B]");
  const int64_t samples = rows.sample_ids.size(0);
  rules.dense(rows.sample_ids, {samples}, DType::i64, "sample_ids i64 [B]");
  if (rows.length != 0) {
    rules.require(
        rows.first_row >= 0 && rows.length > 0 && rows.first_row + count <= samples * rows.length,
        "rows [first_row, first_row + rows) of B * length");
    return;
  }
  rules.require(rows.first_row == 0, "a first row with the length only");
  rules.require(count == 0 || (samples > 0 && count % samples == 0),
                "rows are a multiple of the samples");
}

}  // namespace

void check(const JitterArgs& args) {
  const Rules rules("jitter", args);
  rules.require(
      args.x.defined() && args.x.rank() == 2 && args.x.is_contiguous() && is_float_type(args.x),
      "x [B*T,C] contiguous");
  rules.dense(args.out, args.x.shape(), args.x.dtype(), "out as x");
  check_noise_rows(rules, args.rows, args.x.size(0));
}

void check(const RandomLogitsArgs& args) {
  const Rules rules("random_logits", args);
  rules.require(args.out.defined() && args.out.rank() == 2 && is_wide(args.out),
                "out f32 or f64 [B*T,E]");
  rules.dense(args.out, args.out.shape(), args.out.dtype(), "out contiguous");
  if (args.x.defined()) rules.dense(args.x, args.out.shape(), args.out.dtype(), "x as out");
  if (args.of != RandomLogitsArgs::Of::all) check_noise_rows(rules, args.rows, args.out.size(0));
}

}  // namespace megatron::kernels
