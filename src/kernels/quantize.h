// Quantisation to 8- and 4-bit floats for matrix products.
#pragma once

#include "base/low_precision.h"
#include "kernels/noise.h"

namespace megatron::kernels {

// out = max |x|, f32 0-d; NaN elements are ignored, and no element gives 0. With beta 1, the
// maximum with out. x [R,C] contiguous, of bf16, f16, f32 or f64.
struct AmaxArgs {
  Tensor x;
  Accumulate out;
};

// The scale of a whole tensor: scale = largest / a / 2^margin in f32, at most the largest f32,
// where a = amax, or the maximum of amax and `history` if use_history. For an a that is 0, infinite
// or NaN, the scale is 1; if it is delayed, it keeps its value. Then `history` moves up by one: its
// first element is dropped, and amax becomes its last. amax, scale f32 0-d; history f32 [H] or
// undefined, only if delayed.
struct TensorScaleArgs {
  double largest = 0;
  int margin = 0;
  bool delayed = false, use_history = false;
  Tensor amax, history, scale;
};

// How the scale of a block is found from its a = max |x| (NaN ignored):
//   given           multiplier `scale`, one for the tensor; no scales are written
//   power_of_two    largest(format) / a with its mantissa cleared; 1 if a is 0 or not finite (at
//                   most 2^127)
//   e8m0            multiplier 1 / s, s the smallest power of two with a / s <= largest(format), of
//                   which the exponent is stored; a = 0 has exponent -127
//   e8m0_floor      s = 2^(floor(log2 a) - exponent of largest(format)) instead (OCP Microscaling
//                   1.0, 6.3): values may saturate
//   nvfp4           e2m1 only. s = e4m3(a * (scale * fl(1/6))), multiplier min(1 / (s * fl(1 /
//                   scale)), largest f32) (0 for s = 0), where scale = 448 * 6 / amax of the tensor
//   nvfp4_quotient  s = e4m3((a / 6) / scale), codes of x / (s * scale), where scale = amax of the
//                   tensor / (448 * 6): the same but for rounding
enum class BlockScale : uint8_t { given, power_of_two, e8m0, e8m0_floor, nvfp4, nvfp4_quotient };

// q = x * multiplier of its block, rounded to the format; beyond its largest number, to that. A NaN
// has a NaN value and the format's code of NaN (e2m1: of 6). In f32 (f64 for f64).
//   values [R,C]  q times what its scale represents, in the type of x, but for the tensor's own
//                 scale (given, nvfp4, nvfp4_quotient), so that they are exact. Power-of-two scales
//                 are exact but for the range of the type
//   codes  [R,C]  u8
//   scales        [ceil(R / rows), ceil(C / columns)]: f32 factor of the values for power_of_two,
//                 u8 for the others (e8m0; e4m3 of nvfp4)
// Blocks at the end may be smaller. rows and columns are powers of two up to 128. Each tensor may
// be undefined.
struct QuantizedBlocks {
  int64_t rows = 1, columns = 1;
  Tensor values, codes, scales;
};

// Channels of columns in a whole matrix of which this one has a part: those of the columns from
// `column` on, up to the next run's, begin with `channel`. Both are multiples of 4 and ascend, and
// the first column is 0. No run: channel and column are equal.
struct ChannelRuns {
  struct Run {
    int64_t column = 0, channel = 0;
  };
  static constexpr int kMost = 8;
  int count = 0;
  Run runs[kMost];

  constexpr int64_t channel(int64_t column) const {
    int64_t moved = column;
    for (int i = 0; i < count && runs[i].column <= column; ++i)
      moved = column - runs[i].column + runs[i].channel;
    return moved;
  }
};

// x [R,C] contiguous, of bf16, f32 (f64). scale: f32 0-d, where BlockScale needs it. stochastic: q
// is rounded up with the probability of its distance from the lower neighbour, if u = floor(word /
// 2^8) / 2^24 is less than that; `noise` keys the words by (sample, position, channel). Only e2m1.
// row_groups i32 [G+1] ascending from 0, at most R, or undefined: blocks do not go beyond rows
// [row_groups[g], row_groups[g+1]), nor beyond the rows behind them; with values alone, in columns.
// maxima: the a of each block, f32 of the shape of the scales, or undefined: found in x; without
// groups.
struct QuantizeArgs {
  LowFormat format = LowFormat::e4m3;
  BlockScale rule = BlockScale::given;
  Tensor x, scale, maxima = {};
  QuantizedBlocks out;
  bool stochastic = false;
  NoiseRows noise;
  ChannelRuns channels;
  Tensor row_groups;
};

// Rotation of each 16 rows of a column by the Hadamard matrix with fixed signs s: out[j] = sum over
// i of x[i] s[i] (-1)^popcount(i & j) / 4, rounded once (NVIDIA, Pretraining Large Language Models
// with NVFP4, 2025, section 4.2). An orthogonal matrix, so that products over the rows keep their
// values. The last R % 16 rows are copied. x, out [R,C] contiguous, of one floating type. out may
// be x. row_groups as for QuantizeArgs: the 16 rows begin anew in each group.
struct HadamardArgs {
  Tensor x, out, row_groups;
};
inline constexpr int64_t kHadamardRows = 16;
inline constexpr uint32_t kHadamardMinus = 0xd7e8;  // bit i: s[i] = -1

// Calls f(begin, end) for the rows of each group that has some, of `rows` in all, and for those
// behind them. For devices whose memory the host reads.
template <class F>
void for_each_row_group(const Tensor& groups, int64_t rows, F&& f) {
  if (!groups.defined()) return f(0, rows);
  const auto cuts = groups.span<int32_t>();
  for (size_t g = 0; g < cuts.size(); ++g) {
    const int64_t begin = cuts[g], end = g + 1 < cuts.size() ? cuts[g + 1] : rows;
    if (begin < end) f(begin, end);
  }
}
// The same with the work of a call without groups.
template <class F>
void for_each_row_group(const QuantizeArgs& args, F&& f) {
  if (!args.row_groups.defined()) return f(args);
  for_each_row_group(args.row_groups, args.x.size(0), [&](int64_t begin, int64_t end) {
    QuantizeArgs part = args;
    part.row_groups = {};
    for (Tensor* const t : {&part.x, &part.out.values})
      if (t->defined()) *t = t->slice(0, begin, end - begin);
    part.noise.tokens.length = args.noise.tokens.length_of(args.x.size(0));
    part.noise.tokens.first += begin;
    f(part);
  });
}

void check(const AmaxArgs& args);
void check(const TensorScaleArgs& args);
void check(const QuantizeArgs& args);
void check(const HadamardArgs& args);

template <class F>
void visit(AmaxArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("out", written(a.out.beta), a.out.out);
}
template <class F>
void visit(TensorScaleArgs& a, F&& f) {
  f("amax", Access::read, a.amax);
  f("history", Access::update, a.history);
  f("scale", a.delayed ? Access::update : Access::write, a.scale);
}
template <class F>
void visit(QuantizeArgs& a, F&& f) {
  f("sample_ids", Access::read, a.noise.tokens.sample_ids);
  f("positions", Access::read, a.noise.tokens.positions);
  f("x", Access::read, a.x);
  f("scale", Access::read, a.scale);
  f("maxima", Access::read, a.maxima);
  f("row_groups", Access::read, a.row_groups);
  f("out.values", Access::write, a.out.values);
  f("out.codes", Access::write, a.out.codes);
  f("out.scales", Access::write, a.out.scales);
}
template <class F>
void visit(HadamardArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("row_groups", Access::read, a.row_groups);
  f("out", Access::write, a.out);
}

}  // namespace megatron::kernels
