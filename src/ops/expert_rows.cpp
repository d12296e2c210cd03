#include "ops/expert_rows.h"

#include "ops/low_precision.h"

namespace megatron::ops {
namespace {

// x[index[r] / share,:]; its adjoint sums over the rows in `inverse` [N,share].
struct RowMap {
  Tensor index, inverse;
  int64_t share = 1;
  int64_t choices = 1;  // per token
};

struct RowsAttributes {
  int64_t share, choices;
};

Tensor take(Tape& tape, const Tensor& x, const RowMap& rows, std::string_view label) {
  Tensor out = tape.empty({rows.index.size(0), x.size(1)}, x.dtype(), label);
  tape.kernels().take_rows({.x = x, .index = rows.index, .share = rows.share, .out = out},
                           tape.stream());
  return out;
}

Tensor add_up(Tape& tape, const Tensor& x, const RowMap& rows, std::string_view label) {
  Tensor out = tape.empty({rows.inverse.size(0), x.size(1)}, x.dtype(), label);
  tape.kernels().sum_rows({.x = x, .index = rows.inverse, .out = out}, tape.stream());
  return out;
}

// Row map of a node that saves index and inverse.
RowMap rows_of(Backward& backward) {
  const auto& attributes = backward.attributes<RowsAttributes>();
  return {.index = backward.saved(0),
          .inverse = backward.saved(1),
          .share = attributes.share,
          .choices = attributes.choices};
}

void take_dgrad(Backward& backward) {
  if (!backward.needs(0)) return;
  backward.set(0, add_up(backward.tape(), backward.gradient(0), rows_of(backward), "take_rows.dx"));
}

void sum_dgrad(Backward& backward) {
  if (!backward.needs(0)) return;
  backward.set(0, take(backward.tape(), backward.gradient(0), rows_of(backward), "sum_rows.dx"));
}

Node node_of(std::string_view name, const Var& x, const RowMap& rows, void (*dgrad)(Backward&)) {
  Node node{.name = name, .inputs = {x.id}, .saved = {rows.index, rows.inverse}, .dgrad = dgrad};
  node.attributes = RowsAttributes{rows.share, rows.choices};
  return node;
}

RowMap rows_of(const ExpertOrder& order) {
  return {.index = order.slots, .inverse = order.rows, .share = order.choices()};
}

// Gradient of weights [T,k], one scalar per row: the gradient of [R] is mapped back to [T,k].
void weights_dgrad(Backward& backward) {
  if (!backward.needs(0)) return;
  const Tensor& dout = backward.gradient(0);
  const RowMap rows = rows_of(backward);
  const Tensor dx =
      add_up(backward.tape(), dout.view({dout.size(0), 1}), rows, "weights_of_rows.dx");
  backward.set(0, dx.view({dx.size(0) / rows.choices, rows.choices}));
}

void scale_rows_dgrad(Backward& backward) {
  const Tensor &x = backward.saved(0), &factors = backward.saved(1);
  Tensor dx = backward.empty(x.shape(), x.dtype(), "scale_rows.dx");
  Tensor dfactors = backward.empty(factors.shape(), factors.dtype(), "scale_rows.dfactors");
  backward.kernels().scale_rows_backward(
      {.x = x, .factors = factors, .dout = backward.gradient(0), .dx = dx, .dfactors = dfactors},
      backward.stream());
  if (backward.needs(0)) backward.set(0, dx);
  if (backward.needs(1)) backward.set(1, dfactors);
}

void grouped_dgrad(Backward& backward) {
  if (!backward.needs(0)) return;
  const Tensor& dy = backward.gradient(0);
  const Tensor& w = backward.weight(0).value();
  Tensor dx = backward.empty({dy.size(0), w.size(2)}, w.dtype(), "grouped_linear.dx");
  backward.kernels().grouped_gemm(
      quantized({.a = dy, .b = w, .offsets = backward.saved(1), .out = dx}, Operand::gradient,
                backward.weight(0), backward.tape()),
      backward.stream());
  backward.set(0, dx);
}

// Computes only the bias gradients. The kernel always computes weight gradients, too, so it gets an
// input of one column.
void bias_gradients(Backward& backward, const GradSlot& db) {
  const Tensor &w = backward.weight(0).value(), &dy = backward.gradient(0);
  const Tensor x = backward.empty({dy.size(0), 1}, dy.dtype(), "grouped_linear.no_weight"),
               dw = backward.empty({w.size(0), w.size(1), 1}, db.out.dtype(),
                                   "grouped_linear.no_dw");
  backward.kernels().fill({.out = x, .value = 0}, backward.stream());
  backward.kernels().grouped_gradient(
      {.dy = dy, .x = x, .offsets = backward.saved(1), .dw = {dw}, .dbias = db}, backward.stream());
}

void grouped_wgrad(Backward& backward) {
  const Weight& weight = backward.weight(0);
  const GradSlot dw = backward.grad_slot(0);
  GradSlot db = backward.weights() < 2 ? GradSlot() : backward.grad_slot(1);
  if (db.out.defined() && (!dw.out.defined() || quantization_of(weight, true) != nullptr)) {
    bias_gradients(backward, db);
    db = {};
  }
  if (!dw.out.defined()) return;
  backward.kernels().grouped_gradient(quantized({.dy = backward.gradient(0),
                                                 .x = backward.saved(0),
                                                 .offsets = backward.saved(1),
                                                 .dw = dw,
                                                 .dbias = db},
                                                weight, backward.tape()),
                                      backward.stream());
}

}  // namespace

Var to_experts(Tape& tape, const Var& x, const ExpertOrder& order) {
  const RowMap rows = rows_of(order);
  return tape.record_one(node_of("to_experts", x, rows, take_dgrad),
                         take(tape, x.value, rows, "to_experts"));
}

Var from_experts(Tape& tape, const Var& y, const ExpertOrder& order) {
  const RowMap rows = rows_of(order);
  return tape.record_one(node_of("from_experts", y, rows, sum_dgrad),
                         add_up(tape, y.value, rows, "from_experts"));
}

Var weights_of_rows(Tape& tape, const Var& weights, const ExpertOrder& order) {
  const int64_t slots = weights.value.elements();
  const RowMap rows{.index = order.slots,
                    .inverse = order.rows.view({slots, 1}),
                    .share = 1,
                    .choices = order.choices()};
  Tensor out = take(tape, weights.value.view({slots, 1}), rows, "weights_of_rows");
  return tape.record_one(node_of("weights_of_rows", weights, rows, weights_dgrad),
                         out.view({order.row_count()}));
}

Var scale_rows(Tape& tape, const Var& x, const Var& factors) {
  Tensor out = tape.empty(x.value.shape(), x.value.dtype(), "scale_rows");
  tape.kernels().scale_rows({.x = x.value, .factors = factors.value, .out = out}, tape.stream());
  return tape.record_one({.name = "scale_rows",
                          .inputs = {x.id, factors.id},
                          .saved = {x.value, factors.value},
                          .dgrad = scale_rows_dgrad},
                         out);
}

Var grouped_linear(Tape& tape, const Var& x, const Weight& weight, const Weight& bias,
                   const Tensor& offsets, bool adds_bias) {
  const Tensor& w = weight.value();
  Tensor y = tape.empty({x.value.size(0), w.size(1)}, w.dtype(), "grouped_linear.y");
  tape.kernels().grouped_gemm(quantized({.a = x.value,
                                         .b = w,
                                         .bias = bias && adds_bias ? bias.value() : Tensor(),
                                         .offsets = offsets,
                                         .out = y,
                                         .transpose_b = true},
                                        Operand::activation, weight, tape),
                              tape.stream());
  Node node{.name = "grouped_linear",
            .inputs = {x.id},
            .saved = {weight.for_gradient(x.value), offsets},
            .weights = {weight},
            .dgrad = grouped_dgrad,
            .wgrad = grouped_wgrad};
  if (bias) node.weights.push_back(bias);
  return tape.record_one(std::move(node), y);
}

}  // namespace megatron::ops
