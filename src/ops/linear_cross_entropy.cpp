#include "ops/linear_cross_entropy.h"

#include <algorithm>

#include "base/divide.h"
#include "ops/low_precision.h"

namespace megatron::ops {
namespace {

void loss_dgrad(Backward& backward) {
  if (backward.needs(0)) backward.set(0, backward.saved(0));
}

}  // namespace

void OutputProducts::logits(const Tensor& x, const Tensor& logits) {
  if (!along_inputs_.defined())
    along_inputs_ = quantized(weight_.value(), Operand::weight, 1, weight_, tape_);
  tape_.kernels().gemm({.a = quantized(x, Operand::activation, 1, weight_, tape_),
                        .b = along_inputs_,
                        .out = logits,
                        .transpose_b = true,
                        .bias = bias_ ? bias_.value() : Tensor()},
                       tape_.stream());
}

void OutputProducts::input_gradient(const Tensor& dlogits, const Tensor& dx) {
  if (!along_outputs_.defined())
    along_outputs_ = quantized(weight_.value(), Operand::weight, 0, weight_, tape_);
  tape_.kernels().gemm({.a = quantized(dlogits, Operand::gradient, 1, weight_, tape_),
                        .b = along_outputs_,
                        .out = dx},
                       tape_.stream());
}

void OutputProducts::weight_gradients(const Tensor& dlogits, const Tensor& x) {
  if (const GradSlot dw = tape_.grad_slot(weight_); dw.out.defined())
    multiply({.a = dlogits, .b = x, .out = dw.out, .transpose_a = true, .beta = dw.beta},
             Operand::gradient, Operand::activation, weight_, tape_);
  const GradSlot db = bias_ ? tape_.grad_slot(bias_) : GradSlot();
  if (db.out.defined()) tape_.kernels().column_sum({.x = dlogits, .out = db}, tape_.stream());
}

// Each chunk's product reads and writes the weight's whole f32 gradient. Except on CUDA a chunk has
// 2^25 logits (128 MB in f32), so that this costs a few per cent of the products.
//
// A GPU multiplies faster than it moves memory. The product of R rows takes 2 R V H operations and
// moves 8 V H bytes: an H200, at 720 TFLOP/s and 4.2 TB/s, is limited by compute from R = 4 * 720 /
// 4.2 = 686 on. 1,024 rows are 1.5 times as many, and give enough tiles of the gradient of x to
// fill the GPU: [R,H] has 128 of 128 x 256 at H = 4096. A fixed number also splits the tokens in
// the same way for every rank's part of the vocabulary. 2^28 logits hold them up to V = 262,144:
// 1.5 GiB with their gradients in 16 bits.
int64_t loss_chunk_rows(int64_t vocabulary, const Stream::Target& target) {
  if (target.kind == DeviceKind::cuda)
    return std::clamp<int64_t>((int64_t{1} << 28) / vocabulary / 128 * 128, 128, 1024);
  return std::clamp<int64_t>((int64_t{1} << 25) / vocabulary / 64 * 64, 64, 4096);
}

Tensor loss_chunk(Stream& stream, int64_t rows, int64_t vocabulary, DType type, bool dense,
                  const char* label) {
  constexpr int64_t kUnit = 128;
  const bool padded = stream.target().kind == DeviceKind::cuda && !dense;
  const int64_t apart = padded ? round_up(vocabulary, kUnit) : vocabulary;
  return Tensor::empty(stream.scratch(), {rows, apart}, type, label).slice(1, 0, vocabulary);
}

Tensor linear_cross_entropy(Tape& tape, const Var& x, const Weight& weight, const Tensor& labels,
                            const Tensor& weights, double soft_cap, const LowRank& adapter,
                            const Weight& bias, const Tensor& hits) {
  const Tensor& x_TH = x.value;
  const int64_t tokens = x_TH.size(0), vocabulary = weight.value().size(0);
  const DType type = x_TH.dtype(), sums = kernels::accumulator(type);
  const kernels::Table& table = tape.kernels();
  Stream& stream = tape.stream();
  const int64_t rows =
      std::min(loss_chunk_rows(vocabulary, stream.target()), std::max<int64_t>(tokens, 1));
  Tensor loss_T = tape.empty({tokens}, sums, "loss");
  const bool needs_dx = tape.recording() && x.needs_gradient();
  Tensor dx_TH;
  if (needs_dx) dx_TH = tape.empty(x_TH.shape(), type, "loss.dx");
  const bool capped = soft_cap > 0, dense = capped || bias;
  const Tensor logits_CV = loss_chunk(stream, rows, vocabulary, sums, dense, "loss.logits");
  Tensor dlogits_CV = logits_CV;
  // The gradient of capped logits is computed from their values.
  if (tape.recording() && (type != sums || capped))
    dlogits_CV = loss_chunk(stream, rows, vocabulary, type, dense, "loss.dlogits");
  const Tensor adapted_TH = low_rank_input(adapter, tape, x_TH);
  LowRankInputGradient adapted_dx(adapter, tape, dx_TH);
  OutputProducts products(weight, bias, tape);
  for (int64_t begin = 0; begin < tokens; begin += rows) {
    const int64_t count = std::min(rows, tokens - begin);
    const Tensor x_CH = x_TH.slice(0, begin, count);
    const Tensor logits = logits_CV.slice(0, 0, count);
    products.logits(x_CH, logits);
    const Tensor adapted_CH = adapted_TH.slice(0, begin, count);
    const std::vector<Tensor> inner = add_low_rank(tape, adapter, adapted_CH, logits);
    if (capped) table.soft_cap({.cap = soft_cap, .x = logits, .out = logits}, stream);
    const Tensor dlogits = tape.recording() ? dlogits_CV.slice(0, 0, count) : Tensor();
    table.cross_entropy({.logits = logits,
                         .labels = labels.slice(0, begin, count),
                         .weights = weights.slice(0, begin, count),
                         .loss = loss_T.slice(0, begin, count),
                         .dlogits = dlogits,
                         .hits = hits.defined() ? hits.slice(0, begin, count) : hits},
                        stream);
    if (!tape.recording()) continue;
    if (capped) {
      table.soft_cap_backward({.cap = soft_cap, .out = logits, .dout = dlogits, .dx = dlogits},
                              stream);
    }
    if (needs_dx) products.input_gradient(dlogits, dx_TH.slice(0, begin, count));
    products.weight_gradients(dlogits, x_CH);
    add_low_rank_gradients(adapter, tape, inner, dlogits, adapted_CH,
                           needs_dx ? adapted_dx.sum().slice(0, begin, count) : Tensor());
  }
  adapted_dx.finish();
  if (tape.recording()) {
    tape.gradient_done(weight);
    if (bias) tape.gradient_done(bias);
    for_each_weight(adapter, [&](const Weight& w) { tape.gradient_done(w); });
    tape.record_one({.name = "linear_cross_entropy",
                     .inputs = {x.id},
                     .saved = {dx_TH},
                     .dgrad = loss_dgrad,
                     .root = true},
                    loss_T);
  }
  return loss_T;
}

Tensor linear_logits(const Tensor& x, const Weight& weight, Tape& tape, double soft_cap,
                     const LowRank& adapter, const Weight& bias) {
  Tensor logits_TV =
      tape.empty({x.size(0), weight.value().size(0)}, kernels::accumulator(x.dtype()), "logits");
  OutputProducts(weight, bias, tape).logits(x, logits_TV);
  add_low_rank(tape, adapter, x, logits_TV);
  if (soft_cap > 0)
    tape.kernels().soft_cap({.cap = soft_cap, .x = logits_TV, .out = logits_TV}, tape.stream());
  return logits_TV;
}

}  // namespace megatron::ops
