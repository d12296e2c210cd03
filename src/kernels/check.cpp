#include "kernels/check.h"

#include <initializer_list>

#include "kernels/check_rules.h"

namespace megatron::kernels {
namespace {

void check_mask(const Rules& rules, const DropoutArgs::Mask& mask, int64_t batch) {
  rules.require(mask.p >= 0 && mask.p < 1, "dropout p in [0, 1)");
  if (mask.p == 0) return;
  rules.dense(mask.samples, {batch}, DType::i64, "samples i64 [B]");
}

void check_positions(const Rules& rules, const Tensor& q, const Tensor& k, const Tensor& begins,
                     int64_t batch, int64_t queries, int64_t keys) {
  if (begins.defined()) rules.dense(begins, {batch, queries}, DType::i32, "q_begins i32 [B,T]");
  rules.require(q.defined() == k.defined(), "q_positions and k_positions: both or neither");
  if (!q.defined()) return;
  rules.dense(q, {batch, queries}, DType::i32, "q_positions i32 [B,T]");
  rules.dense(k, {batch, keys}, DType::i32, "k_positions i32 [B,S]");
}

// q, out-like tensors [B,T,N,D] and k, v-like ones [B,S,K,D].
void check_heads(const Rules& rules, std::initializer_list<const Tensor*> queries,
                 std::initializer_list<const Tensor*> keys) {
  for (const auto* group : {&queries, &keys}) {
    const Tensor& first = **group->begin();
    for (const Tensor* t : *group) {
      rules.require(t->defined() && t->rank() == 4 && t->shape() == first.shape(),
                    "q, out and their gradients [B,T,N,D] alike; k, v and theirs [B,S,K,D] alike");
      rules.require(t->dtype() == (*queries.begin())->dtype(), "one type");
      rules.require(last_is_dense(*t), "last dim contiguous");
    }
  }
  const Tensor &q = **queries.begin(), &k = **keys.begin();
  rules.require(is_float_type(q), "a floating type");
  rules.require(q.size(0) == k.size(0) && q.size(3) == k.size(3), "q and k share B and D");
  rules.require(k.size(2) > 0 && q.size(2) % k.size(2) == 0,
                "query heads are a multiple of key heads");
}

void check_master(const Rules& rules, const MasterWeight& parameter, const Tensor& grad) {
  rules.defined(parameter.value, "parameter value defined");
  const Tensor& value = parameter.value;
  rules.require(is_float_type(value) && value.dtype() != DType::f16 && value.is_contiguous(),
                "value f64, f32 or bf16, contiguous");
  rules.require(parameter.remainder.defined() == (value.dtype() == DType::bf16),
                "remainder with bf16 only");
  if (parameter.remainder.defined()) {
    rules.dense(parameter.remainder, value.shape(), DType::i16,
                "remainder i16 of the value's shape");
  }
  rules.dense(grad, value.shape(), accumulator(value.dtype()),
              "grad f32 (f64) of the value's shape");
}

void check_tokens(const Rules& rules, const Tensor& labels, const Tensor& weights, int64_t rows,
                  DType type) {
  rules.dense(labels, {rows}, DType::i32, "labels i32 [T]");
  rules.dense(weights, {rows}, type, "weights f32 (f64) [T]");
}

}  // namespace

void check(const AddNormArgs& args, NormKind kind) {
  const bool layer = kind == NormKind::layer;
  const Rules rules(layer ? "add_layer_norm" : "add_rms_norm", {{"x", args.x},
                                                                {"residual", args.residual},
                                                                {"weight", args.weight},
                                                                {"bias", args.bias},
                                                                {"sum", args.sum},
                                                                {"normed", args.normed},
                                                                {"mean", args.mean},
                                                                {"rstd", args.rstd}});
  rules.require(
      args.x.defined() && args.x.rank() == 2 && args.x.is_contiguous() && is_float_type(args.x),
      "x [T,H] contiguous");
  const Shape shape = args.x.shape();
  const DType type = args.x.dtype();
  rules.require(args.sum.defined() || !args.residual.defined(), "a residual needs the sum");
  if (args.residual.defined()) rules.dense(args.residual, shape, type, "residual as x");
  if (args.sum.defined()) rules.dense(args.sum, shape, type, "sum as x");
  rules.dense(args.normed, shape, type, "normed as x");
  rules.dense(args.weight, {shape[1]}, type, "weight [H] of the type of x");
  rules.dense(args.rstd, {shape[0]}, accumulator(type), "rstd f32 (f64) [T]");
  rules.require(layer == args.bias.defined() && layer == args.mean.defined(),
                "bias and mean with LayerNorm only");
  if (!layer) return;
  rules.dense(args.bias, {shape[1]}, type, "bias [H] of the type of x");
  rules.dense(args.mean, {shape[0]}, accumulator(type), "mean f32 (f64) [T]");
}

void check(const AddNormBackwardArgs& args, NormKind kind) {
  const bool layer = kind == NormKind::layer;
  const Rules rules(layer ? "add_layer_norm_backward" : "add_rms_norm_backward",
                    {{"sum", args.sum},
                     {"dnormed", args.dnormed},
                     {"dsum_in", args.dsum_in},
                     {"weight", args.weight},
                     {"mean", args.mean},
                     {"rstd", args.rstd},
                     {"dsum", args.dsum},
                     {"dweight", args.dweight.out},
                     {"dbias", args.dbias.out}});
  rules.require(args.sum.defined() && args.sum.rank() == 2 && args.sum.is_contiguous() &&
                    is_float_type(args.sum),
                "sum [T,H] contiguous");
  const Shape shape = args.sum.shape();
  const DType type = args.sum.dtype();
  rules.dense(args.dnormed, shape, type, "dnormed as sum");
  rules.dense(args.dsum, shape, type, "dsum as sum");
  if (args.dsum_in.defined()) rules.dense(args.dsum_in, shape, type, "dsum_in as sum");
  rules.dense(args.weight, {shape[1]}, type, "weight [H] of the type of sum");
  rules.dense(args.rstd, {shape[0]}, accumulator(type), "rstd f32 (f64) [T]");
  rules.dense(args.dweight.out, {shape[1]}, accumulator(type), "dweight f32 (f64) [H]");
  rules.require(args.dweight.beta == 0 || args.dweight.beta == 1, "beta is 0 or 1");
  rules.require(layer == args.mean.defined() && layer == args.dbias.out.defined(),
                "mean and dbias with LayerNorm only");
  if (!layer) return;
  rules.dense(args.mean, {shape[0]}, accumulator(type), "mean f32 (f64) [T]");
  rules.dense(args.dbias.out, {shape[1]}, accumulator(type), "dbias f32 (f64) [H]");
  rules.require(args.dbias.beta == 0 || args.dbias.beta == 1, "beta is 0 or 1");
}

namespace {

void check_activation(const Rules& rules, const Tensor& x, const Tensor& out, bool gated) {
  rules.require(x.defined() && x.rank() == 2 && x.is_contiguous() && is_float_type(x),
                "x contiguous of rank 2");
  rules.require(!gated || x.size(1) % 2 == 0, "gated x [T,2F]");
  rules.dense(out, {x.size(0), gated ? x.size(1) / 2 : x.size(1)}, x.dtype(),
              "out [T,F] of the type of x");
}

}  // namespace

void check(const ActivationArgs& args) {
  check_activation(Rules("activation", {{"x", args.x}, {"out", args.out}}), args.x, args.out,
                   args.gated);
}

void check(const ActivationBackwardArgs& args) {
  const Rules rules("activation_backward", {{"x", args.x}, {"dout", args.dout}, {"dx", args.dx}});
  check_activation(rules, args.x, args.dout, args.gated);
  rules.dense(args.dx, args.x.shape(), args.x.dtype(), "dx as x");
}

void check(const RopeArgs& args) {
  const Rules rules("rope", {{"x", args.x},
                             {"out", args.out},
                             {"cos", args.cos},
                             {"sin", args.sin},
                             {"positions", args.positions}});
  rules.require(
      args.x.defined() && args.x.rank() == 3 && last_is_dense(args.x) && is_float_type(args.x),
      "x [T,N,D], last dim contiguous");
  rules.require(args.out.defined() && args.out.shape() == args.x.shape() &&
                    args.out.dtype() == args.x.dtype() && last_is_dense(args.out),
                "out as x");
  rules.require(args.cos.defined() && args.cos.rank() == 2 && args.cos.is_contiguous() &&
                    accumulator_of(args.cos, args.x.dtype()),
                "cos f32 (f64) [P,half]");
  rules.dense(args.sin, args.cos.shape(), args.cos.dtype(), "sin as cos");
  rules.require(2 * args.cos.size(1) <= args.x.size(2), "2 half <= D");
  rules.dense(args.positions, {args.x.size(0)}, DType::i32, "positions i32 [T]");
}

void check(const AttentionArgs& args) {
  const Rules rules("attention", {{"q", args.q},
                                  {"k", args.k},
                                  {"v", args.v},
                                  {"out", args.out},
                                  {"lse", args.lse},
                                  {"q_positions", args.q_positions},
                                  {"k_positions", args.k_positions},
                                  {"q_begins", args.q_begins},
                                  {"samples", args.dropout.samples}});
  check_heads(rules, {&args.q, &args.out}, {&args.k, &args.v});
  const Tensor& q = args.q;
  rules.dense(args.lse, {q.size(0), q.size(2), q.size(1)}, accumulator(q.dtype()),
              "lse f32 (f64) [B,N,T]");
  check_positions(rules, args.q_positions, args.k_positions, args.q_begins, q.size(0), q.size(1),
                  args.k.size(1));
  check_mask(rules, args.dropout, q.size(0));
}

void check(const AttentionBackwardArgs& args) {
  const Rules rules("attention_backward", {{"q", args.q},
                                           {"k", args.k},
                                           {"v", args.v},
                                           {"out", args.out},
                                           {"lse", args.lse},
                                           {"dout", args.dout},
                                           {"dq", args.dq},
                                           {"dk", args.dk},
                                           {"dv", args.dv},
                                           {"q_positions", args.q_positions},
                                           {"k_positions", args.k_positions},
                                           {"q_begins", args.q_begins},
                                           {"samples", args.dropout.samples}});
  check_heads(rules, {&args.q, &args.out, &args.dout, &args.dq},
              {&args.k, &args.v, &args.dk, &args.dv});
  const Tensor& q = args.q;
  rules.dense(args.lse, {q.size(0), q.size(2), q.size(1)}, accumulator(q.dtype()),
              "lse f32 (f64) [B,N,T]");
  check_positions(rules, args.q_positions, args.k_positions, args.q_begins, q.size(0), q.size(1),
                  args.k.size(1));
  check_mask(rules, args.dropout, q.size(0));
}

void check(const SoftmaxArgs& args) {
  const Rules rules("softmax", {{"s", args.s},
                                {"p", args.p},
                                {"lse", args.lse},
                                {"q_positions", args.q_positions},
                                {"k_positions", args.k_positions},
                                {"q_begins", args.q_begins}});
  rules.require(
      args.s.defined() && args.s.rank() == 4 && args.s.is_contiguous() && is_float_type(args.s),
      "s [B,N,T,S] contiguous");
  const Shape s = args.s.shape();
  rules.dense(args.p, s, args.s.dtype(), "p as s");
  rules.dense(args.lse, {s[0], s[1], s[2]}, accumulator(args.s.dtype()), "lse f32 (f64) [B,N,T]");
  check_positions(rules, args.q_positions, args.k_positions, args.q_begins, s[0], s[2], s[3]);
}

void check(const SoftmaxBackwardArgs& args) {
  const Rules rules("softmax_backward", {{"p", args.p}, {"dp", args.dp}, {"ds", args.ds}});
  rules.require(
      args.p.defined() && args.p.rank() == 4 && args.p.is_contiguous() && is_float_type(args.p),
      "p [B,N,T,S] contiguous");
  rules.dense(args.dp, args.p.shape(), args.p.dtype(), "dp as p");
  rules.dense(args.ds, args.p.shape(), args.p.dtype(), "ds as p");
}

void check(const EmbeddingArgs& args) {
  const Rules rules("embedding", {{"ids", args.ids}, {"table", args.table}, {"out", args.out}});
  rules.require(args.ids.defined() && args.ids.rank() == 1 && args.ids.dtype() == DType::i32 &&
                    args.ids.is_contiguous(),
                "ids i32 [T]");
  rules.require(args.table.defined() && args.table.rank() == 2 && args.table.is_contiguous() &&
                    is_float_type(args.table),
                "table [V,H] contiguous");
  rules.dense(args.out, {args.ids.size(0), args.table.size(1)}, args.table.dtype(),
              "out [T,H] of the table's type");
}

void check(const EmbeddingBackwardArgs& args) {
  const Tensor& table = args.dtable.out;
  const Rules rules("embedding_backward",
                    {{"ids", args.ids}, {"dout", args.dout}, {"dtable", table}});
  rules.require(args.ids.defined() && args.ids.rank() == 1 && args.ids.dtype() == DType::i32 &&
                    args.ids.is_contiguous(),
                "ids i32 [T]");
  rules.require(args.dout.defined() && args.dout.rank() == 2 && args.dout.is_contiguous() &&
                    is_float_type(args.dout) && args.dout.size(0) == args.ids.size(0),
                "dout [T,H] contiguous");
  rules.require(table.defined() && table.rank() == 2 && table.is_contiguous() &&
                    table.size(1) == args.dout.size(1) && accumulator_of(table, args.dout.dtype()),
                "dtable f32 (f64) [V,H]");
  rules.require(args.dtable.beta == 0 || args.dtable.beta == 1, "beta is 0 or 1");
}

void check(const CrossEntropyArgs& args) {
  const Rules rules("cross_entropy", {{"logits", args.logits},
                                      {"labels", args.labels},
                                      {"weights", args.weights},
                                      {"loss", args.loss},
                                      {"dlogits", args.dlogits}});
  rules.require(args.logits.defined() && args.logits.rank() == 2 && args.logits.is_contiguous() &&
                    is_float_type(args.logits),
                "logits [T,V] contiguous");
  const int64_t rows = args.logits.size(0);
  const DType type = accumulator(args.logits.dtype());
  check_tokens(rules, args.labels, args.weights, rows, type);
  rules.dense(args.loss, {rows}, type, "loss f32 (f64) [T]");
  if (!args.dlogits.defined()) return;
  const DType given = args.dlogits.dtype();
  rules.require((type == DType::f64) == (given == DType::f64), "dlogits f64 for f64 logits only");
  rules.require(is_float_type(args.dlogits), "dlogits f32, bf16 or f16 (f64)");
  rules.dense(args.dlogits, args.logits.shape(), given, "dlogits [T,V] contiguous");
}

void check(const VocabularyStatsArgs& args) {
  const Rules rules("vocabulary_stats", {{"logits", args.logits},
                                         {"labels", args.labels},
                                         {"weights", args.weights},
                                         {"exponentials", args.exponentials},
                                         {"stats", args.stats}});
  rules.require(args.logits.defined() && args.logits.rank() == 2 && args.logits.is_contiguous() &&
                    is_wide(args.logits),
                "logits [T,V] f32 (f64), contiguous");
  const int64_t rows = args.logits.size(0);
  const DType type = args.logits.dtype();
  check_tokens(rules, args.labels, args.weights, rows, type);
  rules.dense(args.stats, {rows, 3}, type, "stats f32 (f64) [T,3]");
  if (args.exponentials.defined())
    rules.dense(args.exponentials, args.logits.shape(), type, "exponentials as logits");
}

void check(const VocabularyCrossEntropyArgs& args) {
  const Rules rules("vocabulary_cross_entropy", {{"stats", args.stats},
                                                 {"exponentials", args.exponentials},
                                                 {"labels", args.labels},
                                                 {"weights", args.weights},
                                                 {"loss", args.loss},
                                                 {"dlogits", args.dlogits}});
  rules.require(args.stats.defined() && args.stats.rank() == 3 && args.stats.size(2) == 3 &&
                    args.stats.is_contiguous() && is_wide(args.stats),
                "stats f32 (f64) [ranks,T,3]");
  rules.require(args.rank >= 0 && args.rank < args.stats.size(0), "rank is one of the ranks");
  const int64_t rows = args.stats.size(1);
  const DType type = args.stats.dtype();
  check_tokens(rules, args.labels, args.weights, rows, type);
  rules.dense(args.loss, {rows}, type, "loss f32 (f64) [T]");
  if (!args.dlogits.defined()) return;
  rules.require(args.exponentials.defined() && args.exponentials.rank() == 2 &&
                    args.exponentials.size(0) == rows && args.exponentials.dtype() == type &&
                    args.exponentials.is_contiguous(),
                "exponentials f32 (f64) [T,V], contiguous");
  rules.require(
      is_float_type(args.dlogits) && (type == DType::f64) == (args.dlogits.dtype() == DType::f64),
      "dlogits f32, bf16 or f16 (f64)");
  rules.dense(args.dlogits, args.exponentials.shape(), args.dlogits.dtype(),
              "dlogits [T,V] contiguous");
}

void check(const DrawArgs& args) {
  const Rules rules("draw", {{"out", args.out}});
  rules.require(args.out.defined() && args.out.rank() == 2 && is_float_type(args.out) &&
                    (args.out.stride(1) == 1 || args.out.size(1) <= 1) && args.out.stride(0) >= 0,
                "out [rows,columns] of a floating type, columns side by side");
  rules.require(args.first >= 0 && args.step >= 0, "first and step not below 0");
}

void check(const DropoutArgs& args) {
  const Rules rules("dropout", {{"x", args.x}, {"out", args.out}, {"samples", args.mask.samples}});
  rules.require(
      args.x.defined() && args.x.rank() == 2 && args.x.is_contiguous() && is_float_type(args.x),
      "x [B*T,C] contiguous");
  rules.dense(args.out, args.x.shape(), args.x.dtype(), "out as x");
  if (args.mask.p == 0) return;
  rules.require(args.mask.samples.defined() && args.mask.samples.rank() == 1, "samples i64 [B]");
  const int64_t batch = args.mask.samples.size(0), first = args.mask.first_row;
  check_mask(rules, args.mask, batch);
  if (args.mask.length != 0) {
    rules.require(
        first >= 0 && args.mask.length > 0 && first + args.x.size(0) <= batch * args.mask.length,
        "rows [first_row, first_row + rows) of B * length");
    return;
  }
  rules.require(first == 0, "a first row with the length only");
  rules.require(args.x.size(0) == 0 || (batch > 0 && args.x.size(0) % batch == 0),
                "rows are a multiple of the samples");
}

void check(const AddArgs& args) {
  const Rules rules("add", {{"a", args.a}, {"b", args.b}, {"out", args.out}});
  for (const Tensor* t : {&args.a, &args.b, &args.out})
    rules.require(t->defined() && is_floating(t->dtype()), "a, b and out floating");
  const bool row = args.a.rank() == 2 && args.b.rank() == 1;
  rules.dense(args.a, args.out.shape(), args.a.dtype(), "one shape, contiguous");
  rules.dense(args.out, args.a.shape(), args.out.dtype(), "one shape, contiguous");
  rules.dense(args.b, row ? Shape{args.a.size(1)} : args.a.shape(), args.b.dtype(),
              "b of the shape of a, or one row of it, contiguous");
}

void check(const CopyArgs& args) {
  const Rules rules("copy", {{"x", args.x}, {"out", args.out}});
  rules.require(args.x.defined() && args.out.defined() && args.x.shape() == args.out.shape(),
                "shapes alike");
  rules.require(args.x.dtype() == args.out.dtype() ||
                    (is_floating(args.x.dtype()) && is_floating(args.out.dtype())),
                "floating types, or one integer type");
}

void check(const FillArgs& args) {
  const Rules rules("fill", {{"out", args.out}});
  rules.require(args.out.defined() && args.out.is_contiguous(), "out contiguous");
}

void check(const ColumnSumArgs& args) {
  const Rules rules("column_sum", {{"x", args.x}, {"out", args.out.out}});
  rules.require(
      args.x.defined() && args.x.rank() == 2 && args.x.is_contiguous() && is_float_type(args.x),
      "x [T,N] contiguous");
  rules.dense(args.out.out, {args.x.size(1)}, accumulator(args.x.dtype()), "out f32 (f64) [N]");
  rules.require(args.out.beta == 0 || args.out.beta == 1, "beta is 0 or 1");
}

void check(const SumArgs& args) {
  const Rules rules("sum", {{"x", args.x}, {"weights", args.weights}, {"out", args.out}});
  const auto row = [](const Tensor& t) {
    return t.rank() == 1 && t.is_contiguous() &&
           (t.dtype() == DType::f32 || t.dtype() == DType::f64);
  };
  rules.require(args.x.defined() && row(args.x), "x [T] f32 or f64");
  rules.require(
      !args.weights.defined() || (row(args.weights) && args.weights.size(0) == args.x.size(0)),
      "weights [T] f32 or f64");
  rules.scalar(args.out, "out 0-d f64");
}

void check(const SumOfSquaresArgs& args) {
  const Rules rules("sum_of_squares", {{"x", args.x}, {"partial", args.partial}});
  rules.require(args.x.defined() && args.x.is_contiguous() &&
                    (args.x.dtype() == DType::f32 || args.x.dtype() == DType::f64),
                "x contiguous f32 or f64");
  rules.dense(args.partial, {(args.x.elements() + kNormBlock - 1) / kNormBlock}, DType::f64,
              "partial f64 [ceil(n / 16384)]");
}

void check(const GradScaleArgs& args) {
  const Rules rules("grad_scale", {{"partials", args.partials},
                                   {"divisor", args.divisor},
                                   {"norm", args.norm},
                                   {"scale", args.scale}});
  rules.require(args.partials.defined() && args.partials.rank() == 1 &&
                    args.partials.dtype() == DType::f64 && args.partials.is_contiguous(),
                "partials f64 [n]");
  rules.scalar(args.divisor, "divisor 0-d f64");
  rules.scalar(args.norm, "norm 0-d f64");
  rules.scalar(args.scale, "scale 0-d f64");
}

void check(const AdamArgs& args) {
  const Rules rules("adam", {{"value", args.parameter.value},
                             {"remainder", args.parameter.remainder},
                             {"grad", args.grad},
                             {"exp_avg", args.exp_avg},
                             {"exp_avg_sq", args.exp_avg_sq},
                             {"lr", args.lr},
                             {"weight_decay", args.weight_decay},
                             {"step", args.step},
                             {"scale", args.scale}});
  check_master(rules, args.parameter, args.grad);
  for (const Tensor* moment : {&args.exp_avg, &args.exp_avg_sq}) {
    const bool narrow = moment->defined() && moment->dtype() == DType::bf16;
    rules.dense(*moment, args.grad.shape(), narrow ? DType::bf16 : args.grad.dtype(),
                "exp_avg and exp_avg_sq as grad, or bf16");
  }
  for (const Tensor* t : {&args.lr, &args.weight_decay, &args.step, &args.scale}) {
    rules.scalar(*t, "lr, weight_decay, step and scale 0-d f64");
  }
}

void check(const SgdArgs& args) {
  const Rules rules("sgd", {{"value", args.parameter.value},
                            {"remainder", args.parameter.remainder},
                            {"grad", args.grad},
                            {"buffer", args.buffer},
                            {"lr", args.lr},
                            {"weight_decay", args.weight_decay},
                            {"step", args.step},
                            {"scale", args.scale}});
  check_master(rules, args.parameter, args.grad);
  rules.require(args.buffer.defined() == (args.momentum != 0), "a buffer with momentum only");
  if (args.buffer.defined())
    rules.dense(args.buffer, args.grad.shape(), args.grad.dtype(), "buffer as grad");
  for (const Tensor* t : {&args.lr, &args.weight_decay, &args.step, &args.scale}) {
    rules.scalar(*t, "lr, weight_decay, step and scale 0-d f64");
  }
}

void check(const LionArgs& args) {
  const Rules rules("lion", {{"value", args.parameter.value},
                             {"remainder", args.parameter.remainder},
                             {"grad", args.grad},
                             {"exp_avg", args.exp_avg},
                             {"lr", args.lr},
                             {"weight_decay", args.weight_decay},
                             {"scale", args.scale}});
  check_master(rules, args.parameter, args.grad);
  rules.dense(args.exp_avg, args.grad.shape(), args.grad.dtype(), "exp_avg as grad");
  for (const Tensor* t : {&args.lr, &args.weight_decay, &args.scale})
    rules.scalar(*t, "lr, weight_decay and scale 0-d f64");
}

void check(const MuonMomentumArgs& args) {
  const Rules rules("muon_momentum", {{"grad", args.grad},
                                      {"momentum", args.momentum},
                                      {"scale", args.scale},
                                      {"direction", args.direction}});
  rules.require(args.grad.defined() && args.grad.is_contiguous() && is_wide(args.grad),
                "grad f32 or f64, contiguous");
  rules.dense(args.momentum, args.grad.shape(), args.grad.dtype(), "momentum as grad");
  rules.dense(args.direction, args.grad.shape(), args.grad.dtype(), "direction as grad");
  rules.scalar(args.scale, "scale 0-d f64");
}

void check(const UnitNormArgs& args) {
  const Rules rules("unit_norm", {{"x", args.x}, {"partials", args.partials}, {"out", args.out}});
  rules.require(args.x.defined() && args.x.is_contiguous() && is_wide(args.x),
                "x f32 or f64, contiguous");
  const bool narrow = args.out.defined() && args.out.dtype() == DType::bf16;
  rules.dense(args.out, args.x.shape(), narrow ? DType::bf16 : args.x.dtype(), "out as x, or bf16");
  rules.require(args.partials.defined() && args.partials.rank() == 1 &&
                    args.partials.dtype() == DType::f64 && args.partials.is_contiguous(),
                "partials f64 [n]");
}

void check(const WeightedSumArgs& args) {
  const Rules rules("weighted_sum", {{"x", args.x}, {"y", args.y}, {"out", args.out}});
  rules.require(args.x.defined() && args.y.defined() && args.out.defined(), "x, y and out defined");
  for (const Tensor* t : {&args.x, &args.y, &args.out}) {
    rules.require(t->is_contiguous() && t->shape() == args.x.shape() &&
                      (is_wide(*t) || t->dtype() == DType::bf16) &&
                      (t->dtype() == DType::f64) == (args.x.dtype() == DType::f64),
                  "one shape, contiguous, f32 or bf16, or all f64");
  }
}

}  // namespace megatron::kernels
