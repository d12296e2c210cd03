// T tokens, H hidden, E experts, k choices of a token, R rows of experts, F of an expert's feed-forward
#include "nn/moe.h"

#include "ops/elementwise.h"

namespace megatron::nn {
namespace {

// Sum of the weights with which the tokens' losses enter the objective: what a mean over the tokens is worth in it.
Tensor objective_weight(Tape& tape, const Batch& batch) {
  Tensor weight = tape.empty({}, DType::f64, "moe.objective_weight");
  tape.kernels().sum({.x = batch.loss_weights, .out = weight}, tape.stream());
  return weight;
}

Tensor scaled(Tape& tape, const Tensor& x, double factor) {
  Tensor out = tape.empty(x.shape(), x.dtype(), "moe.metric");
  tape.kernels().scale({.factor = factor, .x = x, .out = out}, tape.stream());
  return out;
}

void report_mean(Tape& tape, std::string_view metric, const Tensor& sums, double factor) {
  Tensor ones = tape.empty(sums.shape(), sums.dtype(), "moe.ones");
  tape.kernels().fill({.out = ones, .value = 1}, tape.stream());
  tape.report(metric, {.values = scaled(tape, sums, factor), .weights = ones});
}

}  // namespace

MlpConfig MoeConfig::shared() const {
  MlpConfig config = expert;
  config.ffn = shared_ffn;
  config.bias = false;
  return config;
}

std::vector<MetricDefinition> router_metrics(const RouterTraining& training) {
  std::vector<MetricDefinition> metrics;
  const auto add = [&](std::string_view name) { metrics.push_back({.name = std::string(name)}); };
  if (training.aux_loss != 0) add(kAuxLoss);
  if (training.sequence_aux_loss != 0) add(kSequenceAuxLoss);
  if (training.z_loss != 0) add(kRouterZLoss);
  add(kRouterEntropy);
  return metrics;
}

Moe::Moe(Builder& builder, const std::string& name, int64_t hidden, const MoeConfig& config,
         const RouterTraining& training, parallel::Init init, parallel::Init output_init)
    : config_(config), training_(training) {
  const int64_t experts = config.experts, ffn = config.expert.ffn,
                up = config.expert.gated ? 2 * ffn : ffn;
  router_ = builder.add(name + ".router.weight", {experts, hidden}, init);
  if (config.router_bias) router_bias_ = builder.add(name + ".router.bias", {experts}, zeros());
  if (config.correction_bias) {
    correction_ = &builder.add_state(
        name + ".router.correction", {experts}, zeros(),
        {.observed = {},
         .update = [rate = training.bias_update_rate](const ModuleState& state, Stream& stream) {
           kernels::table(stream).expert_bias(
               {.rate = rate, .counts = state.observed, .bias = state.value()}, stream);
         }});
  }
  up_ = builder.add(name + ".experts.up.weight", {experts, up, hidden}, init);
  down_ = builder.add(name + ".experts.down.weight", {experts, hidden, ffn}, output_init);
  if (config.expert.bias) {
    up_bias_ = builder.add(name + ".experts.up.bias", {experts, up}, zeros());
    down_bias_ = builder.add(name + ".experts.down.bias", {experts, hidden}, zeros());
  }
  if (config.shared_ffn == 0) return;
  shared_ = std::make_unique<Mlp>(builder, name + ".shared", hidden, config.shared(), init,
                                  output_init);
  if (config.shared_gate)
    shared_gate_ = builder.add(name + ".shared_gate.weight", {1, hidden}, init);
}

Var Moe::operator()(Tape& tape, const Var& x_TH, const Batch& batch) const {
  Var logits_TE = ops::router_logits(tape, x_TH, router_, router_bias_);
  logits_TE = with_losses(tape, logits_TE, batch);
  const ops::Routing routing =
      ops::route(tape, logits_TE, config_.choices, config_.router,
                 correction_ == nullptr ? Tensor() : correction_->value());
  const Var y_TH = through_experts(tape, x_TH, routing);
  return shared_ == nullptr ? y_TH : ops::add(tape, y_TH, shared(tape, x_TH));
}

ops::ExpertOrder Moe::order_of(Tape& tape, const ops::Routing& routing) const {
  const Shape& slots = routing.experts.shape();
  ops::ExpertOrder order{
      .offsets = tape.empty({config_.experts + 1}, DType::i32, "moe.offsets"),
      .slots = tape.empty({slots.elements()}, DType::i32, "moe.slots"),
      .rows = tape.empty(slots, DType::i32, "moe.rows")};
  tape.kernels().expert_rows({.experts = routing.experts,
                              .offsets = order.offsets,
                              .slots = order.slots,
                              .rows = order.rows},
                             tape.stream());
  if (correction_ == nullptr) return order;
  if (const Tensor observed = correction_->observe(tape); observed.defined())
    tape.kernels().expert_counts(
        {.experts = routing.experts, .rows = order.rows, .counts = {observed, 1}}, tape.stream());
  return order;
}

// The weight of an expert multiplies what its down-projection reads, so that the sum over a token's experts is one of
// rows as they are.
Var Moe::through_experts(Tape& tape, const Var& x_TH, const ops::Routing& routing) const {
  const ops::ExpertOrder order = order_of(tape, routing);
  Var x_RH = ops::to_experts(tape, x_TH, order);
  const Var weights_R = ops::weights_of_rows(tape, routing.weights, order);
  if (config_.weights_on_input) x_RH = ops::scale_rows(tape, x_RH, weights_R);
  const Var v_RF = ops::grouped_linear(tape, x_RH, up_, up_bias_, order.offsets);
  const MlpConfig& mlp = config_.expert;
  Var y_RF = ops::activation(tape, v_RF, mlp.activation, mlp.gated, mlp.clamp, mlp.up_offset);
  if (!config_.weights_on_input && !mlp.bias) y_RF = ops::scale_rows(tape, y_RF, weights_R);
  Var y_RH = ops::grouped_linear(tape, y_RF, down_, down_bias_, order.offsets);
  if (!config_.weights_on_input && mlp.bias) y_RH = ops::scale_rows(tape, y_RH, weights_R);
  return ops::from_experts(tape, y_RH, order);
}

Var Moe::shared(Tape& tape, const Var& x_TH) const {
  const Var y_TH = (*shared_)(tape, x_TH);
  if (!shared_gate_) return y_TH;
  const Var logit_T1 = ops::router_logits(tape, x_TH, shared_gate_, {});
  const ops::Routing gate =  // one expert, whose weight is its sigmoid
      ops::route(tape, logit_T1, 1, {.score = kernels::RouterScore::sigmoid});
  const Var factor_T(gate.weights.value.view({y_TH.value.size(0)}), gate.weights.id);
  return ops::scale_rows(tape, y_TH, factor_T);
}

Var Moe::with_losses(Tape& tape, const Var& logits_TE, const Batch& batch) const {
  if (!tape.recording()) return logits_TE;
  Var logits = add_balance_loss(tape, logits_TE, batch, 1, training_.aux_loss, training_.z_loss,
                                training_.aux_loss != 0 ? kAuxLoss : std::string_view());
  if (training_.sequence_aux_loss != 0)
    logits = add_balance_loss(tape, logits, batch, batch.sequences, training_.sequence_aux_loss, 0,
                              kSequenceAuxLoss);
  return logits;
}

// A loss is coefficient * E / (k n^2) * sum over e of counts[e] p[e] for each segment of n tokens, and the mean of those
// of all segments; values E / n * sums with the counts as their weights have it as their mean.
Var Moe::add_balance_loss(Tape& tape, const Var& logits_TE, const Batch& batch, int64_t segments,
                          double coefficient, double z, std::string_view metric) const {
  const Tensor& logits = logits_TE.value;
  const int64_t tokens = logits.size(0), experts = logits.size(1);
  const DType type = logits.dtype();
  const auto results = [&](Shape shape) { return tape.empty(shape, type, "moe.router_sums"); };
  const Tensor sums = results({segments, experts}), counts = results({segments, experts}),
               squares = results({segments}), entropy = results({segments});
  const auto score = config_.router.score;
  tape.kernels().router_sums({.score = score,
                              .k = config_.choices,
                              .logits = logits,
                              .sums = sums,
                              .counts = counts,
                              .squares = squares,
                              .entropy = entropy},
                             tape.stream());
  const double length = static_cast<double>(tokens / segments),
               scale = static_cast<double>(experts) / length;
  if (!metric.empty())
    tape.report(metric, {.values = scaled(tape, sums, scale).view({segments * experts}),
                         .weights = counts.view({segments * experts})});
  if (segments == 1) {
    report_mean(tape, kRouterEntropy, entropy, 1 / length);
    if (z != 0) report_mean(tape, kRouterZLoss, squares, 1 / length);
  }
  if (coefficient == 0 && z == 0) return logits_TE;
  const auto all = static_cast<double>(segments);
  return ops::add_router_loss(
      tape, logits_TE,
      {.score = score,
       .balance = coefficient * scale / (static_cast<double>(config_.choices) * length * all),
       .z = z / (length * all),
       .counts = counts,
       .weight = objective_weight(tape, batch)});
}

}  // namespace megatron::nn
