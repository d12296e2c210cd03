// The tensors of each kernel's arguments as one list. Whoever looks at calls from outside reads it:
// plans, traces, the search for NaN, number formats that are computed by widening.
#pragma once

#include <string_view>

#include "kernels/table.h"

namespace megatron::kernels {

enum class Access { read, write, update };  // update: read and written

inline Access written(float beta) { return beta == 0 ? Access::write : Access::update; }

// Calls f(name, access, tensor) for every tensor of `args`, undefined ones too, always in the same
// order. `tensor` is a Tensor&: f may put another one in its place.
template <class F>
void visit(GemmArgs& a, F&& f) {
  f("a", Access::read, a.a);
  f("b", Access::read, a.b);
  f("bias", Access::read, a.bias);
  f("out", written(a.beta), a.out);
  f("aux", a.epilogue == Epilogue::gelu ? Access::write : Access::read, a.aux);
  f("bias_gradient", written(a.bias_gradient.beta), a.bias_gradient.out);
}
template <class F>
void visit(AddNormArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("residual", Access::read, a.residual);
  f("weight", Access::read, a.weight);
  f("bias", Access::read, a.bias);
  f("sum", Access::write, a.sum);
  f("normed", Access::write, a.normed);
  f("mean", Access::write, a.mean);
  f("rstd", Access::write, a.rstd);
}
template <class F>
void visit(AddNormBackwardArgs& a, F&& f) {
  f("dnormed", Access::read, a.dnormed);
  f("dsum_in", Access::read, a.dsum_in);
  f("sum", Access::read, a.sum);
  f("weight", Access::read, a.weight);
  f("mean", Access::read, a.mean);
  f("rstd", Access::read, a.rstd);
  f("dsum", Access::write, a.dsum);
  f("dweight", written(a.dweight.beta), a.dweight.out);
  f("dbias", written(a.dbias.beta), a.dbias.out);
}
template <class F>
void visit(ActivationArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("out", Access::write, a.out);
}
template <class F>
void visit(ActivationBackwardArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("dout", Access::read, a.dout);
  f("dx", Access::write, a.dx);
}
template <class F>
void visit(RopeArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("cos", Access::read, a.cos);
  f("sin", Access::read, a.sin);
  f("positions", Access::read, a.positions);
  f("out", Access::write, a.out);
}
template <class F>
void visit(AttentionArgs& a, F&& f) {
  f("q", Access::read, a.q);
  f("k", Access::read, a.k);
  f("v", Access::read, a.v);
  f("q_positions", Access::read, a.q_positions);
  f("k_positions", Access::read, a.k_positions);
  f("q_begins", Access::read, a.q_begins);
  f("samples", Access::read, a.dropout.samples);
  f("out", Access::write, a.out);
  f("lse", Access::write, a.lse);
}
template <class F>
void visit(AttentionBackwardArgs& a, F&& f) {
  f("q", Access::read, a.q);
  f("k", Access::read, a.k);
  f("v", Access::read, a.v);
  f("out", Access::read, a.out);
  f("lse", Access::read, a.lse);
  f("dout", Access::read, a.dout);
  f("q_positions", Access::read, a.q_positions);
  f("k_positions", Access::read, a.k_positions);
  f("q_begins", Access::read, a.q_begins);
  f("samples", Access::read, a.dropout.samples);
  f("dq", Access::write, a.dq);
  f("dk", Access::write, a.dk);
  f("dv", Access::write, a.dv);
}
template <class F>
void visit(SoftmaxArgs& a, F&& f) {
  f("s", Access::read, a.s);
  f("q_positions", Access::read, a.q_positions);
  f("k_positions", Access::read, a.k_positions);
  f("q_begins", Access::read, a.q_begins);
  f("p", Access::write, a.p);
  f("lse", Access::write, a.lse);
}
template <class F>
void visit(SoftmaxBackwardArgs& a, F&& f) {
  f("p", Access::read, a.p);
  f("dp", Access::read, a.dp);
  f("ds", Access::write, a.ds);
}
template <class F>
void visit(EmbeddingArgs& a, F&& f) {
  f("ids", Access::read, a.ids);
  f("table", Access::read, a.table);
  f("out", Access::write, a.out);
}
template <class F>
void visit(EmbeddingBackwardArgs& a, F&& f) {
  f("ids", Access::read, a.ids);
  f("dout", Access::read, a.dout);
  f("dtable", written(a.dtable.beta), a.dtable.out);
}
template <class F>
void visit(CrossEntropyArgs& a, F&& f) {
  f("logits", Access::read, a.logits);
  f("labels", Access::read, a.labels);
  f("weights", Access::read, a.weights);
  f("loss", Access::write, a.loss);
  f("dlogits", Access::write, a.dlogits);
}
template <class F>
void visit(VocabularyStatsArgs& a, F&& f) {
  f("logits", Access::read, a.logits);
  f("labels", Access::read, a.labels);
  f("weights", Access::read, a.weights);
  f("exponentials", Access::write, a.exponentials);
  f("stats", Access::write, a.stats);
}
template <class F>
void visit(VocabularyCrossEntropyArgs& a, F&& f) {
  f("stats", Access::read, a.stats);
  f("exponentials", Access::read, a.exponentials);
  f("labels", Access::read, a.labels);
  f("weights", Access::read, a.weights);
  f("loss", Access::write, a.loss);
  f("dlogits", Access::write, a.dlogits);
}
template <class F>
void visit(DrawArgs& a, F&& f) {
  f("out", Access::write, a.out);
}
template <class F>
void visit(DropoutArgs& a, F&& f) {
  f("samples", Access::read, a.mask.samples);
  f("x", Access::read, a.x);
  f("out", Access::write, a.out);
}
template <class F>
void visit(AddArgs& a, F&& f) {
  f("a", Access::read, a.a);
  f("b", Access::read, a.b);
  f("out", Access::write, a.out);
}
template <class F>
void visit(CopyArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("out", Access::write, a.out);
}
template <class F>
void visit(FillArgs& a, F&& f) {
  f("out", Access::write, a.out);
}
template <class F>
void visit(ColumnSumArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("out", written(a.out.beta), a.out.out);
}
template <class F>
void visit(SumArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("weights", Access::read, a.weights);
  f("out", Access::write, a.out);
}
template <class F>
void visit(SumOfSquaresArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("partial", Access::write, a.partial);
}
template <class F>
void visit(GradScaleArgs& a, F&& f) {
  f("partials", Access::read, a.partials);
  f("divisor", Access::read, a.divisor);
  f("norm", Access::write, a.norm);
  f("scale", Access::write, a.scale);
}
template <class F>
void visit(AdamArgs& a, F&& f) {
  f("grad", Access::read, a.grad);
  f("lr", Access::read, a.lr);
  f("weight_decay", Access::read, a.weight_decay);
  f("step", Access::read, a.step);
  f("scale", Access::read, a.scale);
  f("parameter", Access::update, a.parameter.value);
  f("remainder", Access::update, a.parameter.remainder);
  f("exp_avg", Access::update, a.exp_avg);
  f("exp_avg_sq", Access::update, a.exp_avg_sq);
}
template <class F>
void visit(SgdArgs& a, F&& f) {
  f("grad", Access::read, a.grad);
  f("lr", Access::read, a.lr);
  f("weight_decay", Access::read, a.weight_decay);
  f("step", Access::read, a.step);
  f("scale", Access::read, a.scale);
  f("parameter", Access::update, a.parameter.value);
  f("remainder", Access::update, a.parameter.remainder);
  f("buffer", Access::update, a.buffer);
}
template <class F>
void visit(LionArgs& a, F&& f) {
  f("grad", Access::read, a.grad);
  f("lr", Access::read, a.lr);
  f("weight_decay", Access::read, a.weight_decay);
  f("scale", Access::read, a.scale);
  f("parameter", Access::update, a.parameter.value);
  f("remainder", Access::update, a.parameter.remainder);
  f("exp_avg", Access::update, a.exp_avg);
}
template <class F>
void visit(MuonMomentumArgs& a, F&& f) {
  f("grad", Access::read, a.grad);
  f("scale", Access::read, a.scale);
  f("momentum", Access::update, a.momentum);
  f("direction", Access::write, a.direction);
}
template <class F>
void visit(UnitNormArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("partials", Access::read, a.partials);
  f("out", Access::write, a.out);
}
template <class F>
void visit(WeightedSumArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("y", Access::read, a.y);
  f("out", Access::write, a.out);
}

}  // namespace megatron::kernels
