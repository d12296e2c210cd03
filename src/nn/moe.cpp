// T tokens, H hidden, E experts, k choices of a token, R rows of experts, F of an expert's feed-forward
#include "nn/moe.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "ops/elementwise.h"
#include "parallel/collectives.h"

namespace megatron::nn {
namespace {

using parallel::RankGroup;

// Also in a forward pass that records nothing because backward runs it again.
bool trains(const Tape& tape) { return tape.pass() != Pass::evaluate; }

// Sums of the weights with which the losses of tokens enter the objective, f64 [count], of `count` runs of tokens in a
// row from `first` on: what a mean over such a run is worth in it.
Tensor objective_weights(Tape& tape, const Batch& batch, int64_t first, int64_t count,
                         int64_t length) {
  Tensor weights = tape.empty({count}, DType::f64, "moe.objective_weights");
  for (int64_t i = 0; i < count; ++i)
    tape.kernels().sum({.x = batch.loss_weights.slice(0, first + i * length, length),
                        .out = weights.slice(0, i, 1).view({})},
                       tape.stream());
  return weights;
}

Tensor scaled(Tape& tape, const Tensor& x, double factor) {
  Tensor out = tape.empty(x.shape(), x.dtype(), "moe.metric");
  tape.kernels().scale({.factor = factor, .x = x, .out = out}, tape.stream());
  return out;
}

void report_mean(Tape& tape, std::string_view metric, const Tensor& sums, double factor,
                 bool divided) {
  Tensor ones = tape.empty(sums.shape(), sums.dtype(), "moe.ones");
  tape.kernels().fill({.out = ones, .value = 1}, tape.stream());
  tape.report(metric, {.values = scaled(tape, sums, factor), .weights = ones, .divided = divided});
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
    : config_(config),
      tensor_(builder.tensor()),
      ranks_(builder.ranks().expert_ranks()),
      held_(parallel::share_of(config.experts, builder.ranks().size(RankGroup::expert),
                               builder.ranks().rank(RankGroup::expert))),
      adds_bias_(builder.ranks().rank(RankGroup::expert_tensor) == 0),
      training_(training) {
  const int ranks = builder.ranks().size(RankGroup::expert);
  MG_CHECK(config.experts % ranks == 0,
           "{} experts cannot be divided evenly among {} ranks; change "
           "--expert-model-parallel-size or --num-experts",
           config.experts, ranks);
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
  const parallel::Division by_expert{.axis = 0, .blocks = {experts}, .group = RankGroup::expert};
  const auto by_width = [&](int axis, std::vector<int64_t> blocks) {
    return parallel::Division{
        .axis = axis, .blocks = std::move(blocks), .group = RankGroup::expert_tensor};
  };
  const std::vector<int64_t> rows(config.expert.gated ? 2 : 1, ffn);  // of [gate | up]
  up_ = builder.add(name + ".experts.up.weight", {experts, up, hidden}, init,
                    {.divisions = {by_expert, by_width(1, rows)}});
  down_ = builder.add(name + ".experts.down.weight", {experts, hidden, ffn}, output_init,
                      {.divisions = {by_expert, by_width(2, {ffn})}});
  if (config.expert.bias) {
    up_bias_ = builder.add(name + ".experts.up.bias", {experts, up}, zeros(),
                           {.divisions = {by_expert, by_width(1, rows)}});
    down_bias_ = builder.add(name + ".experts.down.bias", {experts, hidden}, zeros(),
                             {.divisions = {by_expert}});
  }
  if (config.shared_ffn == 0) return;
  shared_ =
      std::make_unique<Mlp>(builder, name + ".shared", hidden, config.shared(), init, output_init);
  if (config.shared_gate)
    shared_gate_ = builder.add(name + ".shared_gate.weight", {1, hidden}, init);
}

Var Moe::operator()(Tape& tape, const Var& x_TH, const Batch& batch) const {
  return tape.module("moe", {{"x", x_TH}},
                     [this, &batch](Tape& t, const Bundle& in) {
                       return Bundle{{"y", mixture(t, in["x"], batch)}};
                     },
                     {})["y"];
}

Var Moe::mixture(Tape& tape, const Var& x_TH, const Batch& batch) const {
  if (trains(tape) && tensor_.divides_tokens())
    training_.check_divided(batch.length, x_TH.value.size(0), tensor_.size(),
                            ranks_.group == nullptr ? 1 : ranks_.group->size());
  Var logits_TE = ops::router_logits(tape, x_TH, router_, router_bias_);
  logits_TE = with_losses(tape, logits_TE, batch);
  const ops::Routing routing = ops::route(tape, logits_TE, config_.choices, config_.router,
                                          correction_ == nullptr ? Tensor() : correction_->value());
  const Var y_TH = through_experts(tape, x_TH, routing, batch);
  return shared_ == nullptr ? y_TH : ops::add(tape, y_TH, shared(tape, x_TH));
}

// Each rank counts what goes to its own experts; the ranks' counts are added up.
void Moe::observe(Tape& tape, const Tensor& experts, const Tensor& rows) const {
  if (correction_ == nullptr) return;
  if (const Tensor observed = correction_->observe(tape); observed.defined())
    tape.kernels().expert_counts({.experts = experts, .rows = rows, .counts = {observed, 1}},
                                 tape.stream());
}

Moe::Capacity Moe::capacity_of(Tape& tape, int64_t own_tokens, const Batch& batch) const {
  if (training_.capacity_factor <= 0 || !trains(tape)) return {};
  const int64_t segment = training_.capacity_of_sequence ? batch.length : own_tokens;
  const double mean =
      static_cast<double>(segment * config_.choices) / static_cast<double>(config_.experts);
  return {.segment = segment,
          .rows = std::max<int64_t>(
              1, static_cast<int64_t>(std::ceil(mean * training_.capacity_factor)))};
}

// Of all tokens, those that go to experts of this rank.
ops::ExpertOrder Moe::order_of(Tape& tape, const Tensor& experts, const Tensor& weights,
                               const Capacity& capacity) const {
  const bool padded = capacity.rows > 0 && training_.padded;
  const int64_t tokens = experts.size(0),
                most = padded ? held_.size * capacity.rows * (tokens / capacity.segment)
                              : std::min(config_.choices, held_.size) * tokens;
  ops::ExpertOrder order{.offsets = tape.empty({held_.size + 1}, DType::i32, "moe.offsets"),
                         .slots = tape.empty({most}, DType::i32, "moe.slots"),
                         .rows = tape.empty(experts.shape(), DType::i32, "moe.rows")};
  tape.kernels().expert_rows({.experts = experts,
                              .weights = weights,
                              .first = held_.global_begin,
                              .capacity = capacity.rows,
                              .segment = capacity.segment,
                              .kept = training_.kept,
                              .padded = padded,
                              .offsets = order.offsets,
                              .slots = order.slots,
                              .rows = order.rows},
                             tape.stream());
  observe(tape, experts, order.rows);
  // The host sees its own memory: no more rows than there are.
  const Device device = order.offsets.device();
  if ((ranks_.group != nullptr || capacity.rows > 0) && device.is_host() && device.has_data())
    order.slots = order.slots.slice(0, 0, order.offsets.data<int32_t>()[held_.size]);
  return order;
}

// The weight of an expert multiplies what its down-projection reads, so that the sum over a token's experts is one of
// rows as they are; after a bias it multiplies the result.
Var Moe::through_experts(Tape& tape, const Var& x_TH, const ops::Routing& routing,
                         const Batch& batch) const {
  const Tensor experts = parallel::to_expert_ranks(tape, routing.experts, ranks_, "expert choices");
  const Var weights = parallel::to_expert_ranks(tape, routing.weights, ranks_, "expert weights");
  const Var x = parallel::to_expert_ranks(tape, x_TH, ranks_, "expert tokens");
  const ops::ExpertOrder order =
      order_of(tape, experts, weights.value, capacity_of(tape, x_TH.value.size(0), batch));
  Var x_RH = ops::to_experts(tape, x, order);
  const Var weights_R = ops::weights_of_rows(tape, weights, order);
  if (config_.weights_on_input) x_RH = ops::scale_rows(tape, x_RH, weights_R);
  const Var v_RF = ops::grouped_linear(tape, x_RH, up_, up_bias_, order.offsets);
  const Bundle inner = tape.module("moe_act", {{"v", v_RF}, {"weights", weights_R}},
                                   [this](Tape& t, const Bundle& in) {
                                     return Bundle{{"y", activated(t, in["v"], in["weights"])}};
                                   },
                                   {"y"});
  Var y_RH = ops::grouped_linear(tape, inner["y"], down_, down_bias_, order.offsets, adds_bias_);
  if (!config_.weights_on_input && config_.expert.bias)
    y_RH = ops::scale_rows(tape, y_RH, weights_R);
  return parallel::from_expert_ranks(tape, ops::from_experts(tape, y_RH, order), ranks_,
                                     "expert results");
}

Var Moe::activated(Tape& tape, const Var& v_RF, const Var& weights_R) const {
  const MlpConfig& mlp = config_.expert;
  const Var y_RF = ops::activation(tape, v_RF, mlp.activation, mlp.gated, mlp.clamp, mlp.up_offset);
  if (config_.weights_on_input || mlp.bias) return y_RF;
  return ops::scale_rows(tape, y_RF, weights_R);
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

// The loss of a micro-batch counts what all of its tokens chose; those of sequences do not depend on which others there
// are.
Var Moe::with_losses(Tape& tape, const Var& logits_TE, const Batch& batch) const {
  if (!trains(tape)) return logits_TE;
  Var logits = logits_TE;
  if (training_.aux_loss != 0)
    logits = add_balance_loss(tape, logits, batch,
                              {.ranks = tensor_.divides_tokens() ? tensor_.size() : 1,
                               .coefficient = training_.aux_loss,
                               .metric = kAuxLoss});
  return add_balance_loss(tape, logits, batch,
                          sequence_loss(batch.length, logits_TE.value.size(0), batch.sequences));
}

// Of divided tokens a sequence may lie on several ranks, or a rank may have several.
Moe::BalanceLoss Moe::sequence_loss(int64_t length, int64_t own, int64_t sequences) const {
  BalanceLoss loss{.coefficient = training_.sequence_aux_loss,
                   .z = training_.z_loss,
                   .metric = training_.sequence_aux_loss != 0 ? kSequenceAuxLoss : "",
                   .reports_rest = true};
  if (!tensor_.divides_tokens()) {
    loss.segments = sequences;
    return loss;
  }
  const bool whole = own % length == 0, parts = length % own == 0;
  if (whole) loss.segments = own / length;
  if (parts) loss.ranks = static_cast<int>(length / own);
  return loss;
}

// The counts of segments that lie on `ranks` tensor-parallel ranks in a row are those of all of these.
void Moe::sum_counts(Tape& tape, const Tensor& counts, int ranks) const {
  if (!tensor_.divides_tokens() || ranks == 1) return;
  if (ranks == tensor_.size())
    return parallel::sum_in_place(tape, counts, *tensor_.group, "expert load");
  // Those of each sequence on several of the ranks: gathered, and added up by this rank.
  const int64_t experts = counts.size(1);
  const Tensor all = parallel::gathered_rows(tape, counts, *tensor_.group, "expert load",
                                             MemoryClass::activations);
  const int64_t first = tensor_.rank() / ranks * ranks;
  tape.kernels().column_sum(
      {.x = all.slice(0, first, ranks), .out = {.out = counts.view({experts})}}, tape.stream());
}

// A loss is coefficient * E / (k n^2) * sum over e of counts[e] p[e] for a segment of n tokens; values E / n * sums with
// the counts as their weights have it as their mean.
Var Moe::add_balance_loss(Tape& tape, const Var& logits_TE, const Batch& batch,
                          const BalanceLoss& loss) const {
  const Tensor& logits = logits_TE.value;
  const int64_t tokens = logits.size(0), experts = logits.size(1), segments = loss.segments;
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
  const bool divided = tensor_.divides_tokens();
  sum_counts(tape, counts, loss.ranks);
  const int64_t own = tokens / segments, length = own * loss.ranks;
  const double n = static_cast<double>(length), scale = static_cast<double>(experts) / n;
  // Each rank of a segment reports the counts of all and sums of its own.
  if (!loss.metric.empty())
    tape.report(loss.metric,
                {.values = scaled(tape, sums, scale * loss.ranks).view({segments * experts}),
                 .weights = counts.view({segments * experts}),
                 .divided = divided});
  if (loss.reports_rest) {
    const double one = 1 / static_cast<double>(own);
    report_mean(tape, kRouterEntropy, entropy, one, divided);
    if (loss.z != 0) report_mean(tape, kRouterZLoss, squares, one, divided);
  }
  if (loss.coefficient == 0 && loss.z == 0) return logits_TE;
  const int64_t first = divided ? tensor_.rank() * tokens / length * length : 0;
  return ops::add_router_loss(
      tape, logits_TE,
      {.score = score,
       .balance = loss.coefficient * scale / (static_cast<double>(config_.choices) * n),
       .z = loss.z / n,
       .counts = counts,
       .weight = objective_weights(tape, batch, first, segments, length)});
}

}  // namespace megatron::nn
