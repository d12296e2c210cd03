#include "ops/router.h"

namespace megatron::ops {
namespace {

// The tensor in f32 (f64): itself or a copy.
Tensor widened(Backward& backward, const Tensor& t) {
  const DType type = kernels::accumulator(t.dtype());
  if (t.dtype() == type) return t;
  Tensor wide = backward.empty(t.shape(), type, "router_logits.wide");
  backward.kernels().copy({.x = t, .out = wide}, backward.stream());
  return wide;
}

struct LogitsAttributes {
  bool double_sums;
};

void logits_dgrad(Backward& backward) {
  if (!backward.needs(0)) return;
  const Tensor& dlogits = backward.gradient(0);
  const Tensor w = widened(backward, backward.weight(0).value());
  Tensor dx = backward.empty({dlogits.size(0), w.size(1)}, w.dtype(), "router_logits.dx");
  const bool double_sums = backward.attributes<LogitsAttributes>().double_sums;
  backward.kernels().gemm({.a = dlogits, .b = w, .out = dx, .double_sums = double_sums},
                          backward.stream());
  const DType type = backward.weight(0).value().dtype();
  if (type != dx.dtype()) {
    Tensor rounded = backward.empty(dx.shape(), type, "router_logits.dx");
    backward.kernels().copy({.x = dx, .out = rounded}, backward.stream());
    dx = rounded;
  }
  backward.set(0, dx);
}

void logits_wgrad(Backward& backward) {
  const GradSlot dw = backward.grad_slot(0);
  const GradSlot db = backward.weights() < 2 ? GradSlot() : backward.grad_slot(1);
  if (!dw.out.defined()) {
    if (db.out.defined())
      backward.kernels().column_sum({.x = backward.gradient(0), .out = db}, backward.stream());
    return;
  }
  backward.kernels().gemm({.a = backward.gradient(0),
                           .b = widened(backward, backward.saved(0)),
                           .out = dw.out,
                           .transpose_a = true,
                           .beta = dw.beta,
                           .bias_gradient = db,
                           .double_sums = backward.attributes<LogitsAttributes>().double_sums},
                          backward.stream());
}

void jitter_dgrad(Backward& backward) {
  if (!backward.needs(0)) return;
  auto args = backward.attributes<kernels::JitterArgs>();
  args.x = backward.gradient(0);
  args.out = backward.empty(args.x.shape(), args.x.dtype(), "jitter.dx");
  backward.kernels().jitter(args, backward.stream());
  backward.set(0, args.out);
}

void random_logits_dgrad(Backward& backward) {
  if (backward.needs(0)) backward.set(0, backward.gradient(0));
}

void route_dgrad(Backward& backward) {
  if (!backward.needs(0)) return;
  const Tensor& logits = backward.saved(0);
  Tensor dlogits = backward.empty(logits.shape(), logits.dtype(), "route.dlogits");
  backward.kernels().route_backward(
      {.form = backward.attributes<kernels::RouterForm>(),
       .logits = logits,
       .experts = backward.saved(1),
       .dweights = backward.gradient(0).view(backward.saved(1).shape()),
       .dlogits = dlogits},
      backward.stream());
  backward.set(0, dlogits);
}

struct RouterLossAttributes {
  kernels::RouterScore score;
  double balance, z;
};

void router_loss_dgrad(Backward& backward) {
  if (!backward.needs(0)) return;
  const auto& loss = backward.attributes<RouterLossAttributes>();
  const Tensor& logits = backward.saved(0);
  Tensor dlogits = backward.empty(logits.shape(), logits.dtype(), "router_loss.dlogits");
  backward.kernels().copy({.x = backward.gradient(0), .out = dlogits}, backward.stream());
  const Tensor &counts = backward.saved(1), &weight = backward.saved(2),
               &counted = backward.saved(3);
  const int64_t segments = counts.size(0), length = logits.size(0) / segments;
  for (int64_t s = 0; s < segments; ++s) {
    backward.kernels().router_loss_backward(
        {.score = loss.score,
         .balance = loss.balance,
         .z = loss.z,
         .logits = logits.slice(0, s * length, length),
         .counts = counts.slice(0, s, 1),
         .weight = weight.slice(0, s, 1).view({}),
         .counted = counted.defined() ? counted.slice(0, s * length, length) : Tensor(),
         .dlogits = dlogits.slice(0, s * length, length)},
        backward.stream());
  }
  backward.set(0, dlogits);
}

}  // namespace

Var router_logits(Tape& tape, const Var& x, const Weight& weight, const Weight& bias,
                  bool double_sums) {
  const Tensor& w = weight.value();
  Tensor logits =
      tape.empty({x.value.size(0), w.size(0)}, kernels::accumulator(w.dtype()), "router_logits");
  tape.kernels().gemm({.a = x.value,
                       .b = w,
                       .out = logits,
                       .transpose_b = true,
                       .bias = bias ? bias.value() : Tensor(),
                       .double_sums = double_sums},
                      tape.stream());
  Node node{.name = "router_logits",
            .inputs = {x.id},
            .saved = {weight.for_gradient(x.value)},
            .weights = {weight},
            .dgrad = logits_dgrad,
            .wgrad = logits_wgrad};
  node.attributes = LogitsAttributes{double_sums};
  if (bias) node.weights.push_back(bias);
  return tape.record_one(std::move(node), logits);
}

Var jitter(Tape& tape, const Var& x, double width, const kernels::NoiseRows& rows) {
  if (width == 0) return x;
  Tensor out = tape.empty(x.value.shape(), x.value.dtype(), "jitter");
  tape.kernels().jitter({.width = width, .rows = rows, .x = x.value, .out = out}, tape.stream());
  Node node{.name = "jitter", .inputs = {x.id}, .dgrad = jitter_dgrad};
  node.attributes = kernels::JitterArgs{.width = width, .rows = rows};
  return tape.record_one(std::move(node), out);
}

Var random_logits(Tape& tape, const Var& logits, const RandomLogits& random) {
  Tensor out = tape.empty(logits.value.shape(), logits.value.dtype(), "random_logits");
  tape.kernels().random_logits({.scale = random.scale,
                                .of = random.of,
                                .rows = random.rows,
                                .x = random.replaces ? Tensor() : logits.value,
                                .out = out},
                               tape.stream());
  return tape.record_one(
      {.name = "random_logits", .inputs = {logits.id}, .dgrad = random_logits_dgrad}, out);
}

Routing route(Tape& tape, const Var& logits, int64_t k, const kernels::RouterForm& form,
              const Tensor& bias, const Tensor& selection) {
  const int64_t tokens = logits.value.size(0);
  Tensor experts = tape.empty({tokens, k}, DType::i32, "route.experts");
  Tensor weights = tape.empty({tokens, k}, logits.value.dtype(), "route.weights");
  tape.kernels().route({.form = form,
                        .logits = logits.value,
                        .bias = bias,
                        .selection = selection,
                        .experts = experts,
                        .weights = weights},
                       tape.stream());
  Node node{.name = "route",
            .inputs = {logits.id},
            .saved = {logits.value, experts},
            .dgrad = route_dgrad};
  node.attributes = form;
  return {experts, tape.record_one(std::move(node), weights)};
}

Var add_router_loss(Tape& tape, const Var& logits, const RouterLoss& loss) {
  Node node{.name = "router_loss",
            .inputs = {logits.id},
            .saved = {logits.value, loss.counts, loss.weight, loss.counted},
            .dgrad = router_loss_dgrad};
  node.attributes = RouterLossAttributes{loss.score, loss.balance, loss.z};
  return tape.record_one(std::move(node), logits.value);
}

}  // namespace megatron::ops
