#include "ops/linear.h"

#include "ops/low_precision.h"

namespace megatron::ops {
namespace {

// Attributes of a product's node.
struct Product {
  bool has_bias = false;
  LowRankNode adapter;
};

void input_gradient(Backward& backward, kernels::Epilogue epilogue, const Tensor& aux) {
  const Tensor& dy = backward.gradient(0);
  const LowRankNode& adapter = backward.attributes<Product>().adapter;
  const Tensor& weight = backward.weight(0).value();
  const Tensor w = adapter.matrix(backward, weight);
  Tensor dx = backward.empty({dy.size(0), w.size(1)}, w.dtype(), "linear.dx");
  multiply({.a = dy, .b = w, .out = dx, .epilogue = epilogue, .aux = aux}, Operand::gradient,
           Operand::weight, backward.weight(0), backward.tape(), backward.for_wgrad());
  adapter.input_gradient(backward, weight, dy, dx);
  backward.set(0, dx);
}

void linear_dgrad(Backward& backward) {
  if (backward.needs(0)) return input_gradient(backward, kernels::Epilogue::none, {});
  backward.attributes<Product>().adapter.input_gradient(backward, backward.weight(0).value(),
                                                        backward.gradient(0), {});
}

void linear_of_gelu_dgrad(Backward& backward) {
  if (backward.needs(0))
    input_gradient(backward, kernels::Epilogue::gelu_gradient, backward.saved(1));
}

void linear_wgrad(Backward& backward) {
  const auto& product = backward.attributes<Product>();
  const Tensor &dy = backward.gradient(0), &x = backward.saved(0);
  linear_weight_gradients(backward, dy, x, product.has_bias);
  product.adapter.weight_gradients(backward, backward.weight(0).value(), dy, x);
}

Node linear_node(const Weight& weight, const Weight& bias) {
  Node node{.name = "linear", .weights = {weight}, .dgrad = linear_dgrad, .wgrad = linear_wgrad};
  if (bias) node.weights.push_back(bias);
  node.attributes = Product{.has_bias = static_cast<bool>(bias), .adapter = {}};
  return node;
}

void add_to_product(Tape& tape, const Weight& weight, const Tensor& x, const Tensor& y) {
  if (tape.additions() != nullptr) tape.additions()->add(tape, weight, x, y);
}

Tensor result(Tape& tape, const Tensor& x, const Tensor& w, MemoryClass memory) {
  return Tensor::empty(tape.runtime().arena(memory), {x.size(0), w.size(0)}, w.dtype(), "linear.y");
}

}  // namespace

kernels::GemmArgs linear_call(const Tensor& x, const Weight& weight, const Weight& bias,
                              const Tensor& y) {
  return {.a = x,
          .b = weight.value(),
          .out = y,
          .transpose_b = true,
          .bias = bias ? bias.value() : Tensor()};
}

kernels::GemmArgs linear_gelu_call(const Tensor& x, const Weight& weight, const Weight& bias,
                                   const Tensor& v, const Tensor& y) {
  kernels::GemmArgs call = linear_call(x, weight, bias, y);
  call.epilogue = kernels::Epilogue::gelu;
  call.aux = v;
  return call;
}

void linear_weight_gradients(Backward& backward, const Tensor& dy, const Tensor& x, bool has_bias) {
  const GradSlot dw = backward.grad_slot(0);
  const GradSlot db = has_bias ? backward.grad_slot(1) : GradSlot();
  if (dw.out.defined()) {
    multiply(
        {.a = dy, .b = x, .out = dw.out, .transpose_a = true, .beta = dw.beta, .bias_gradient = db},
        Operand::gradient, Operand::activation, backward.weight(0), backward.tape(),
        backward.for_wgrad());
  } else if (db.out.defined()) {
    backward.kernels().column_sum({.x = dy, .out = db}, backward.stream());
  }
}

// A product without the epilogue replaces the rows: a row's bits depend on its own additions alone.
void add_to_gelu_product(const Tensor& x, Tape& tape, const Weight& weight, const Weight& bias,
                         const Tensor& y) {
  if (tape.additions() == nullptr) return;
  Tensor v;
  tape.additions()->for_each_range(weight, [&](int64_t first, int64_t count) {
    if (!v.defined()) {
      v = tape.empty(y.shape(), y.dtype(), "linear.y");
      tape.kernels().gemm(linear_call(x, weight, bias, v), tape.stream());
      add_to_product(tape, weight, x, v);
    }
    tape.kernels().activation({.x = v.slice(0, first, count), .out = y.slice(0, first, count)},
                              tape.stream());
  });
}

Var linear(Tape& tape, const Var& x, const Weight& weight, const Weight& bias, MemoryClass memory,
           const LowRank& adapter) {
  Tensor y = result(tape, x.value, weight.value(), memory);
  kernels::GemmArgs call = linear_call(x.value, weight, bias, y);
  call.b = adapted_matrix(adapter, tape, weight.value());
  multiply(call, Operand::activation, Operand::weight, weight, tape);
  add_to_product(tape, weight, x.value, y);
  Node node = linear_node(weight, bias);
  node.inputs = {x.id};
  node.saved = {adapter ? x.value : weight.for_gradient(x.value)};
  if (adapter) {
    std::vector<Tensor> inner = add_adapter(adapter, tape, weight.value(), x.value, y);
    node.attributes =
        Product{.has_bias = static_cast<bool>(bias), .adapter = {node, adapter, std::move(inner)}};
  }
  return tape.record_one(std::move(node), y);
}

Gelu linear_gelu(Tape& tape, const Var& x, const Weight& weight, const Weight& bias, bool keeps_v) {
  const Tensor& w = weight.value();
  Tensor v = keeps_v ? result(tape, x.value, w, MemoryClass::activations) : Tensor();
  Tensor y = tape.empty({x.value.size(0), w.size(0)}, w.dtype(), "gelu");
  multiply(linear_gelu_call(x.value, weight, bias, v, y), Operand::activation, Operand::weight,
           weight, tape);
  add_to_gelu_product(x.value, tape, weight, bias, y);
  Node node = linear_node(weight, bias);
  node.inputs = {x.id};
  node.saved = {weight.for_gradient(x.value)};
  return {tape.record_one(std::move(node), v), y};
}

Var linear(Tape& tape, const Gelu& g, const Weight& weight, const Weight& bias,
           MemoryClass memory) {
  Tensor y = result(tape, g.y.value, weight.value(), memory);
  multiply(linear_call(g.y.value, weight, bias, y), Operand::activation, Operand::weight, weight,
           tape);
  add_to_product(tape, weight, g.y.value, y);
  Node node = linear_node(weight, bias);
  node.inputs = {g.x.id, g.y.id};
  node.saved = {weight.for_gradient(g.y.value), g.x.value};
  node.dgrad = linear_of_gelu_dgrad;
  return tape.record_one(std::move(node), y);
}

}  // namespace megatron::ops
