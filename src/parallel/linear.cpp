#include "parallel/linear.h"

#include "base/error.h"
#include "ops/low_precision.h"
#include "parallel/collectives.h"
#include "parallel/column_input.h"

namespace megatron::parallel {
namespace {

struct ColumnProduct {
  ColumnInput input;
  bool has_bias = false;
  ops::LowRankNode adapter;
};

void column_product_dgrad(Backward& backward) {
  const auto& [input, has_bias, adapter] = backward.attributes<ColumnProduct>();
  const Weight& weight = backward.weight(0);
  if (adapter || weight.trainable()) input.begin_gather(backward);
  const Tensor& dy = backward.gradient(0);
  if (!backward.needs(0)) return adapter.input_gradient(backward, weight.value(), dy, {});
  const Tensor w = adapter.matrix(backward, weight.value());
  Tensor dx = input.partial_gradient(backward, {dy.size(0), w.size(1)}, w.dtype());
  ops::multiply({.a = dy, .b = w, .out = dx}, Operand::gradient, Operand::weight, weight,
                backward.tape(), backward.for_wgrad());
  adapter.input_gradient(backward, weight.value(), dy, dx);
  input.begin_sum(backward, dx);
}

void column_product_wgrad(Backward& backward) {
  const auto& [input, has_bias, adapter] = backward.attributes<ColumnProduct>();
  const bool reads_x = adapter || backward.weight(0).trainable();
  const Tensor x = reads_x ? input.gathered(backward) : Tensor();
  ops::linear_weight_gradients(backward, backward.gradient(0), x, has_bias);
  adapter.weight_gradients(backward, backward.weight(0).value(), backward.gradient(0), x);
  input.release();
}

void row_bias_dgrad(Backward& backward) {
  if (backward.needs(0)) backward.set(0, backward.gradient(0));
}

void row_bias_wgrad(Backward& backward) {
  if (const GradSlot db = backward.grad_slot(0); db.out.defined())
    backward.kernels().column_sum({.x = backward.gradient(0), .out = db}, backward.stream());
}

// y + bias, written over y.
Var add_bias(Tape& tape, const Var& y, const Weight& bias) {
  const Tensor& t = y.value;
  tape.kernels().add({.a = t, .b = bias.value(), .out = t}, tape.stream());
  return tape.record_one({.name = "row_linear.bias",
                          .inputs = {y.id},
                          .weights = {bias},
                          .dgrad = row_bias_dgrad,
                          .wgrad = row_bias_wgrad},
                         t);
}

// Records the nodes of a column product.
Var record_column(Tape& tape, const Var& x, const Tensor& whole, const Weight& weight,
                  const Weight& bias, const TensorParallel& tp, const Tensor& y,
                  const ops::LowRank& adapter = {}) {
  ColumnInput in(tp);
  const Var input = in.record(tape, x, whole);
  Node node{.name = "column_linear",
            .inputs = {input.id},
            .saved = {adapter ? x.value : weight.for_gradient(x.value)},
            .weights = {weight},
            .dgrad = column_product_dgrad,
            .wgrad = column_product_wgrad};
  if (bias) node.weights.push_back(bias);
  ops::LowRankNode adapted;
  if (adapter) adapted = {node, adapter, ops::add_adapter(adapter, tape, weight.value(), whole, y)};
  node.attributes = ColumnProduct{std::move(in), static_cast<bool>(bias), std::move(adapted)};
  return tape.record_one(std::move(node), y);
}

// Columns of a gathered [T, 2 k/n] that make up a rank's key (value) head: `pieces` ranks from
// `first` on hold `width` columns each.
struct KeyHead {
  int64_t q, head_size, width;
  int first, pieces;
  comm::Group* group;

  // Calls f(rank, columns [0, width) of its piece for keys or [width, 2 width) for values, their
  // position in [q | key | value]).
  template <class F>
  void for_each_piece(F&& f) const {
    for (int piece = 0; piece < pieces; ++piece) {
      f(first + piece, 0, q + piece * width);
      f(first + piece, width, q + head_size + piece * width);
    }
  }
};

void gather_key_head_dgrad(Backward& backward) {
  if (!backward.needs(0)) return;
  const auto& head = backward.attributes<KeyHead>();
  const Tensor& dy = backward.gradient(0);
  const int64_t tokens = dy.size(0), columns = 2 * head.width;
  const kernels::Table& kernels = backward.kernels();
  Stream& stream = backward.stream();
  Tensor parts = communication_buffer(backward.tape(), {head.group->size(), tokens, columns},
                                      dy.dtype(), "gather_key_head, gradient");
  kernels.fill({.out = parts, .value = 0}, stream);
  head.for_each_piece([&](int rank, int64_t from, int64_t to) {
    kernels.copy(
        {.x = dy.slice(1, to, head.width), .out = parts.select(0, rank).slice(1, from, head.width)},
        stream);
  });
  Tensor own = communication_buffer(backward.tape(), {tokens, columns}, dy.dtype(),
                                    "gather_key_head, gradient");
  head.group->reduce_scatter(parts, own, comm::Reduce::sum, stream, "gather_key_head, gradient")
      .wait(stream);
  Tensor dqkv = backward.empty({tokens, head.q + columns}, dy.dtype(), "gather_key_head.dqkv");
  kernels.copy({.x = dy.slice(1, 0, head.q), .out = dqkv.slice(1, 0, head.q)}, stream);
  kernels.copy({.x = own, .out = dqkv.slice(1, head.q, columns)}, stream);
  backward.set(0, dqkv);
}

}  // namespace

Var row_sum(Tape& tape, const Var& partial, const Weight& bias, const TensorParallel& tp) {
  const Var y = sum_of_parts(tape, partial, tp, "row_linear");
  return bias ? add_bias(tape, y, bias) : y;
}

Var column_linear(Tape& tape, const Var& x, const Weight& weight, const Weight& bias,
                  const TensorParallel& tp, const ops::LowRank& adapter) {
  if (alone(tp.group)) return ops::linear(tape, x, weight, bias, MemoryClass::activations, adapter);
  const Tensor whole = ColumnInput::whole(tape, x, tp), &w = weight.value();
  Tensor y = tape.empty({whole.size(0), w.size(0)}, w.dtype(), "column_linear.y");
  kernels::GemmArgs call = ops::linear_call(whole, weight, bias, y);
  call.b = ops::adapted_matrix(adapter, tape, w);
  ops::multiply(call, Operand::activation, Operand::weight, weight, tape);
  if (tape.additions() != nullptr) tape.additions()->add(tape, weight, whole, y);
  return record_column(tape, x, whole, weight, bias, tp, y, adapter);
}

ops::Gelu column_linear_gelu(Tape& tape, const Var& x, const Weight& weight, const Weight& bias,
                             const TensorParallel& tp, bool keeps_v) {
  if (alone(tp.group)) return ops::linear_gelu(tape, x, weight, bias, keeps_v);
  const Tensor whole = ColumnInput::whole(tape, x, tp), &w = weight.value();
  const Shape shape{whole.size(0), w.size(0)};
  Tensor v = keeps_v ? tape.empty(shape, w.dtype(), "column_linear.y") : Tensor();
  Tensor y = tape.empty(shape, w.dtype(), "gelu");
  ops::multiply(ops::linear_gelu_call(whole, weight, bias, v, y), Operand::activation,
                Operand::weight, weight, tape);
  ops::add_to_gelu_product(whole, tape, weight, bias, y);
  return {record_column(tape, x, whole, weight, bias, tp, v), y};
}

Var row_linear(Tape& tape, const Var& x, const Weight& weight, const Weight& bias,
               const TensorParallel& tp, const ops::LowRank& adapter) {
  if (alone(tp.group)) return ops::linear(tape, x, weight, bias, MemoryClass::activations, adapter);
  return row_sum(tape, ops::linear(tape, x, weight, {}, partial_memory(tp), adapter), bias, tp);
}

Var row_linear(Tape& tape, const ops::Gelu& g, const Weight& weight, const Weight& bias,
               const TensorParallel& tp) {
  if (alone(tp.group)) return ops::linear(tape, g, weight, bias);
  return row_sum(tape, ops::linear(tape, g, weight, {}, partial_memory(tp)), bias, tp);
}

Var gather_key_head(Tape& tape, const Var& qkv, int64_t q, int64_t k, int64_t head_size,
                    const TensorParallel& tp) {
  if (alone(tp.group)) return qkv;
  const int64_t ranks = tp.size(), heads = k / head_size;
  MG_CHECK(heads > 0 && k % head_size == 0 && ranks % heads == 0 && k % ranks == 0,
           "{} key-value heads of size {} cannot be divided among {} tensor-parallel ranks: the "
           "number of ranks must be a multiple of the number of heads, and the heads' columns a "
           "multiple of the number of ranks",
           heads, head_size, ranks);
  const int pieces = static_cast<int>(ranks / heads);
  const KeyHead head{.q = q,
                     .head_size = head_size,
                     .width = k / ranks,
                     .first = tp.rank() / pieces * pieces,
                     .pieces = pieces,
                     .group = tp.group};
  const int64_t tokens = qkv.value.size(0), columns = 2 * head.width;
  const DType type = qkv.value.dtype();
  MG_ASSERT(qkv.value.size(1) == q + columns);
  const kernels::Table& kernels = tape.kernels();
  Stream& stream = tape.stream();
  Tensor own = communication_buffer(tape, {tokens, columns}, type, "gather_key_head");
  Tensor parts = communication_buffer(tape, {ranks, tokens, columns}, type, "gather_key_head");
  kernels.copy({.x = qkv.value.slice(1, q, columns), .out = own}, stream);
  tp.group->all_gather(own, parts, stream, "gather_key_head").wait(stream);
  Tensor out = tape.empty({tokens, q + 2 * head_size}, type, "gather_key_head");
  kernels.copy({.x = qkv.value.slice(1, 0, q), .out = out.slice(1, 0, q)}, stream);
  head.for_each_piece([&](int rank, int64_t from, int64_t to) {
    kernels.copy({.x = parts.select(0, rank).slice(1, from, head.width),
                  .out = out.slice(1, to, head.width)},
                 stream);
  });
  Node node{.name = "gather_key_head", .inputs = {qkv.id}, .dgrad = gather_key_head_dgrad};
  node.attributes = head;
  return tape.record_one(std::move(node), out);
}

}  // namespace megatron::parallel
