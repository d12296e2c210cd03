// T tokens, H hidden (or latent, for experts), E experts, k choices per token, R rows of experts, F
// width of an expert's feed-forward
#include "nn/moe.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "autograd/other_batch_rows.h"
#include "base/divide.h"
#include "base/error.h"
#include "ops/elementwise.h"
#include "ops/low_precision.h"
#include "parallel/collectives.h"

namespace megatron::nn {

using parallel::RankGroup;

MlpConfig MoeConfig::shared() const {
  MlpConfig config = expert;
  config.ffn = shared_ffn;
  config.bias = false;
  return config;
}

Moe::Moe(Builder& builder, const std::string& name, int64_t layer, int64_t hidden,
         const MoeConfig& config, const RouterTraining& training, parallel::Init init,
         parallel::Init output_init, uint64_t seed)
    : config_(config),
      layer_(layer),
      tensor_(builder.tensor()),
      ranks_(builder.ranks().expert_ranks()),
      held_(parallel::share_of(config.experts, builder.ranks().size(RankGroup::expert),
                               builder.ranks().rank(RankGroup::expert))),
      adds_bias_(builder.ranks().rank(RankGroup::expert_tensor) == 0),
      training_(training),
      load_(layer, config.experts),
      router_(builder, name + ".router", layer, hidden, config, training, init, seed),
      correction_(router_.correction()) {
  const int ranks = builder.ranks().size(RankGroup::expert);
  MG_CHECK(config.experts % ranks == 0,
           "{} experts cannot be divided evenly among {} ranks; change "
           "--expert-model-parallel-size or --num-experts",
           config.experts, ranks);
  const int64_t experts = config.experts, ffn = config.expert.ffn,
                up = config.expert.gated ? 2 * ffn : ffn;
  const int64_t width = config.latent > 0 ? config.latent : hidden;  // width that experts see
  if (config.latent > 0) {
    const bool bias = config.expert.bias;
    latent_in_ =
        std::make_unique<ReplicatedLinear>(builder, name + ".latent_in", hidden, width, bias, init);
    latent_out_ = std::make_unique<ReplicatedLinear>(builder, name + ".latent_out", width, hidden,
                                                     bias, output_init);
  }
  const parallel::Division by_expert{.axis = 0, .blocks = {experts}, .group = RankGroup::expert};
  const auto by_width = [&](int axis, std::vector<int64_t> blocks) {
    return parallel::Division{
        .axis = axis, .blocks = std::move(blocks), .group = RankGroup::expert_tensor};
  };
  const std::vector<int64_t> rows(config.expert.gated ? 2 : 1, ffn);  // halves of [gate | up]
  up_ = builder.add(name + ".experts.up.weight", {experts, up, width}, init,
                    {.divisions = {by_expert, by_width(1, rows)}});
  down_ = builder.add(name + ".experts.down.weight", {experts, width, ffn}, output_init,
                      {.divisions = {by_expert, by_width(2, {ffn})}});
  if (config.expert.bias) {
    up_bias_ = builder.add(name + ".experts.up.bias", {experts, up}, zeros(),
                           {.divisions = {by_expert, by_width(1, rows)}});
    down_bias_ = builder.add(name + ".experts.down.bias", {experts, width}, zeros(),
                             {.divisions = {by_expert}});
  }
  builder.quantize_experts(*up_.parameter);
  builder.quantize_experts(*down_.parameter);
  up_adapter_ = builder.add_expert_adapter(*up_.parameter);
  down_adapter_ = builder.add_expert_adapter(*down_.parameter);
  if (config.shared_ffn == 0) return;
  shared_ =
      std::make_unique<Mlp>(builder, name + ".shared", hidden, config.shared(), init, output_init);
  if (config.shared_gate)
    shared_gate_ = builder.add(name + ".shared_gate.weight", {1, hidden}, init);
}

Var Moe::operator()(Tape& tape, const Var& x_TH, const Batch& batch) const {
  return tape.module("moe", {{"x", x_TH}},
                     [this, &batch](Tape& t, const Bundle& in) {
                       Tokens tokens = send(t, in["x"], batch);
                       compute(t, tokens);
                       return Bundle{{"y", receive(t, tokens)}};
                     },
                     {})["y"];
}

Moe::Tokens Moe::send(Tape& tape, const Var& x_TH, const Batch& batch) const {
  if (trains(tape) && tensor_.divides_tokens())
    training_.check_divided(batch.layout.held(), x_TH.value.size(0), tensor_.size());
  const int64_t own = x_TH.value.size(0), held = batch.layout.held();
  Tokens sent{.x_TH = x_TH,
              .capacity = capacity_of(tape, own, batch),
              .counted = batch.text_length() == batch.layout.length,
              .pads = batch.real.rows.defined()};
  MG_ASSERT(!trains(tape) || sent.counted || !training_.counts_tokens());
  const ops::Routing routing = router_(tape, x_TH, batch);
  if (sent.counted) observe(tape, routing.experts);
  report(tape, routing.experts, batch.continuation);
  Tensor experts = routing.experts;
  if (sent.capacity.rows > 0 && training_.capacity_of_sequence && !sees_sequences(own, batch)) {
    experts = router_.kept(tape, routing, sent.capacity.rows, batch);
    // What is kept fits: a rank has tokens of this many sequences.
    const bool aligned = own % held == 0 || held % own == 0;
    const int64_t sequences = ceil_div(own, held) + (aligned ? 0 : 1);
    sent.capacity = {.segment = own, .rows = std::min(own, sequences * sent.capacity.rows)};
  }
  sent.choices = parallel::send_to_expert_ranks(tape, experts, ranks_, "expert choices");
  if (rounds_by_chance(tape)) send_places(tape, batch, sent);
  sent.weights =
      parallel::send_to_expert_ranks(tape, routing.weights, ranks_, nullptr, "expert weights");
  if (ranks_.dispatcher == parallel::TokenDispatcher::alltoall)
    sent.routes = parallel::token_routes(tape, sent.choices.end(tape), config_.experts, ranks_);
  const Var x = latent_in_ == nullptr ? x_TH : (*latent_in_)(tape, x_TH);
  sent.tokens = parallel::send_to_expert_ranks(tape, x, ranks_, sent.routes, "expert tokens");
  return sent;
}

void Moe::compute(Tape& tape, Tokens& sent) const {
  Mlp::Inner inner;
  if (shared_ != nullptr) inner = shared_->up(tape, sent.x_TH);
  const Tensor experts = sent.choices.end(tape);
  const Var weights = sent.weights.end(tape), x = sent.tokens.end(tape);
  std::optional<Var> y = with_additions(tape, x, weights, experts);
  if (!y) {
    const ops::ExpertOrder order = order_of(tape, experts, weights.value, sent);
    if (sent.counted) observe_rows(tape, experts, order.rows);
    std::optional<OtherBatchRows> rows;
    if (rounds_by_chance(tape)) rows.emplace(tape, places(tape, sent, order));
    y = through_experts(tape, x, weights, order, {&up_adapter_, &down_adapter_});
  }
  sent.results = parallel::send_back(tape, *y, ranks_, sent.routes, "expert results");
  if (shared_ != nullptr) sent.shared_TH = shared_result(tape, sent.x_TH, inner);
}

Var Moe::receive(Tape& tape, Tokens& sent) const {
  const Var y = sent.results.end(tape);
  const Var y_TH = latent_out_ == nullptr ? y : (*latent_out_)(tape, y);
  return shared_ == nullptr ? y_TH : ops::add(tape, y_TH, sent.shared_TH);
}

// True if the gradients of the experts' outputs are rounded stochastically.
bool Moe::rounds_by_chance(const Tape& tape) const {
  return tape.recording() && std::ranges::any_of(std::array{up_, down_}, [](const Weight& weight) {
           const LowPrecision* const how = ops::quantization_of(weight, false);
           return how != nullptr && how->formats.recipe == LowPrecisionRecipe::nvfp4;
         });
}

// Sends each token's sample and position, which key its random numbers, to the ranks of its
// experts.
void Moe::send_places(Tape& tape, const Batch& batch, Tokens& sent) const {
  const int64_t own = sent.x_TH.value.size(0);
  kernels::RowTokens tokens = batch.rows_of(tensor_);
  tokens.length = batch.layout.held();
  const Tensor ids = tape.empty({own, 1}, DType::i64, "expert samples"),
               positions = tape.empty({own, 1}, DType::i32, "expert positions");
  tape.kernels().tokens_of_rows({.tokens = tokens,
                                 .index = {},
                                 .sample_ids = ids.view({own}),
                                 .positions = positions.view({own})},
                                tape.stream());
  sent.sample_ids = parallel::send_to_expert_ranks(tape, ids, ranks_, "expert samples");
  sent.positions = parallel::send_to_expert_ranks(tape, positions, ranks_, "expert positions");
}

// Samples and positions of the tokens of the experts' rows.
BatchRows Moe::places(Tape& tape, const Tokens& sent, const ops::ExpertOrder& order) const {
  const Tensor ids = sent.sample_ids.end(tape), positions = sent.positions.end(tape);
  const int64_t all = ids.size(0), rows = order.row_count();
  kernels::RowTokens of_rows{.sample_ids = tape.empty({rows}, DType::i64, "expert samples"),
                             .positions = tape.empty({rows}, DType::i32, "expert positions"),
                             .length = 1};
  tape.kernels().tokens_of_rows(
      {.tokens = {.sample_ids = ids.view({all}), .positions = positions.view({all}), .length = 1},
       .index = order.slots,
       .share = order.choices(),
       .sample_ids = of_rows.sample_ids,
       .positions = of_rows.positions},
      tape.stream());
  return {std::move(of_rows), rows};
}

// Counts the choices of each rank's own tokens, and the biases that they used.
void Moe::observe(const Tape& tape, const Tensor& experts) const {
  if (tensor_.divides_tokens() || tensor_.rank() == 0) load_.count_chosen(tape, experts);
  if (const Tensor bias = router_.bias(); bias.defined()) load_.take_bias(tape, bias);
}

// Inference does not divide tokens, so every rank has all choices.
void Moe::report(const Tape& tape, const Tensor& experts, const Continuation& at) const {
  if (at.expert_choices.empty()) return;
  const Tensor& out = at.expert_choices.at(static_cast<size_t>(layer_));
  MG_ASSERT(out.size(0) == experts.size(0) && out.size(1) >= experts.size(1));
  tape.kernels().copy({.x = experts, .out = out.slice(1, 0, experts.size(1))}, tape.stream());
}

// Each rank counts the choices of its own experts; the counts are summed over ranks.
void Moe::observe_rows(Tape& tape, const Tensor& experts, const Tensor& rows) const {
  const bool first_slice = adds_bias_;
  const bool bounded = training_.capacity_factor > 0 || training_.rank_capacity_factor > 0;
  if (bounded && first_slice) load_.count_kept(tape, experts, rows);
  if (correction_ == nullptr) return;
  if (const Tensor observed = correction_->observe(tape); observed.defined())
    tape.kernels().expert_counts({.experts = experts, .rows = rows, .counts = {observed, 1}},
                                 tape.stream());
}

Moe::Capacity Moe::capacity_of(Tape& tape, int64_t own_tokens, const Batch& batch) const {
  if (training_.capacity_factor <= 0 || !trains(tape)) return {};
  const int64_t segment = training_.capacity_of_sequence ? batch.layout.length : own_tokens;
  const double factor = training_.capacity_factor;
  return {.segment = segment,
          .rows = kernels::capacity_rows(segment, config_.choices, config_.experts, factor),
          .factor = batch.real.rows.defined() ? factor : 0};
}

// True if the ranks that share a layer's experts have all tokens of each of their sequences.
bool Moe::sees_sequences(int64_t own_tokens, const Batch& batch) const {
  if (batch.layout.ranks > 1) return false;
  const int ranks = ranks_.group == nullptr ? 1 : ranks_.group->size();
  return !tensor_.divides_tokens() || own_tokens % batch.layout.length == 0 ||
         ranks % tensor_.size() == 0;
}

// Upper bound on the rows of this rank's experts, for `tokens` tokens in all.
int64_t Moe::most_rows(Tape& tape, int64_t tokens, const Capacity& capacity) const {
  const int64_t any = std::min(config_.choices, held_.size) * tokens;
  if (capacity.rows > 0) {
    const int64_t most = held_.size * capacity.rows * (tokens / capacity.segment);
    return training_.padded ? most : std::min(any, most);
  }
  if (training_.rank_capacity_factor <= 0 || !trains(tape)) return any;
  const int64_t most = rows_at(training_.rank_capacity_factor, tokens, any);
  load_.take_room(tape, most, any);
  return most;
}

// Rows of this rank's experts at `load` times an even load, at most `most`.
int64_t Moe::rows_at(double load, int64_t tokens, int64_t most) const {
  const double even = static_cast<double>(tokens * config_.choices * held_.size) /
                      static_cast<double>(config_.experts);
  const double rows = std::ceil(even * load);
  return rows < static_cast<double>(most) ? static_cast<int64_t>(rows) : most;
}

// The host can read its own memory, so it uses only as many rows as exist. For a plan they are
// those of the assumed load.
int64_t Moe::existing_rows(const Tensor& offsets, int64_t tokens, int64_t most, bool padded) const {
  const Device device = offsets.device();
  if (device.is_host()) return offsets.data<int32_t>()[held_.size];
  const bool planned = !device.has_data() && ranks_.planned_load > 0 && !padded;
  return planned ? rows_at(ranks_.planned_load, tokens, most) : most;
}

// Selects and orders the tokens that go to this rank's experts.
ops::ExpertOrder Moe::order_of(Tape& tape, const Tensor& experts, const Tensor& weights,
                               const Tokens& sent) const {
  const Capacity& capacity = sent.capacity;
  const bool padded = capacity.rows > 0 && training_.padded;
  const int64_t most = most_rows(tape, experts.size(0), capacity);
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
                              .factor = capacity.factor,
                              .all_experts = config_.experts,
                              .offsets = order.offsets,
                              .slots = order.slots,
                              .rows = order.rows},
                             tape.stream());
  if (ranks_.group != nullptr || capacity.rows > 0 || sent.pads)
    order.slots =
        order.slots.slice(0, 0, existing_rows(order.offsets, experts.size(0), most, padded));
  return order;
}

// In a pass that adds to experts' matrices for some of its rows: the results of all, one range of
// tokens with the same additions after the other.
std::optional<Var> Moe::with_additions(Tape& tape, const Var& x, const Var& weights,
                                       const Tensor& experts) const {
  if (tape.additions() == nullptr) return std::nullopt;
  Tensor y;
  tape.additions()->for_each_expert_range(
      up_, down_,
      [&](int64_t first, int64_t count, const ops::ExpertLowRank* up,
          const ops::ExpertLowRank* down) {
        const auto of = [&](const Tensor& all) { return all.slice(0, first, count); };
        if (!y.defined()) y = tape.empty(x.value.shape(), x.value.dtype(), "moe.y");
        const Var part = through_experts(tape, of(x.value), of(weights.value),
                                         order_of(tape, of(experts), of(weights.value), {}),
                                         {.up = up, .down = down});
        tape.kernels().copy({.x = part.value, .out = of(y)}, tape.stream());
      });
  return y.defined() ? std::optional<Var>(y) : std::nullopt;
}

// An expert's weight multiplies the input of its down-projection, so that the sum over a token's
// experts needs no weights; if the down-projection has a bias, the weight multiplies its result
// instead.
Var Moe::through_experts(Tape& tape, const Var& x, const Var& weights,
                         const ops::ExpertOrder& order, const Adapters& adapters) const {
  const auto adapt = [&](const ops::ExpertLowRank* adapter, const Var& in, const Var& y) {
    return adapter == nullptr ? y : ops::add_low_rank(tape, *adapter, in, y, order.offsets);
  };
  Var x_RH = ops::to_experts(tape, x, order);
  const Var weights_R = ops::weights_of_rows(tape, weights, order);
  if (config_.weights_on_input) x_RH = ops::scale_rows(tape, x_RH, weights_R);
  const Var v_RF =
      adapt(adapters.up, x_RH, ops::grouped_linear(tape, x_RH, up_, up_bias_, order.offsets));
  const Bundle inner = tape.module("moe_act", {{"v", v_RF}, {"weights", weights_R}},
                                   [this](Tape& t, const Bundle& in) {
                                     return Bundle{{"y", activated(t, in["v"], in["weights"])}};
                                   },
                                   {"y"});
  Var y_RH = ops::grouped_linear(tape, inner["y"], down_, down_bias_, order.offsets, adds_bias_);
  y_RH = adapt(adapters.down, inner["y"], y_RH);
  if (!config_.weights_on_input && config_.expert.bias)
    y_RH = ops::scale_rows(tape, y_RH, weights_R);
  return ops::from_experts(tape, y_RH, order);
}

Var Moe::activated(Tape& tape, const Var& v_RF, const Var& weights_R) const {
  const MlpConfig& mlp = config_.expert;
  const Var y_RF = ops::activation(tape, v_RF, mlp.activation, mlp.gated, mlp.clamp, mlp.up_offset);
  if (config_.weights_on_input || mlp.bias) return y_RF;
  return ops::scale_rows(tape, y_RF, weights_R);
}

Var Moe::shared_result(Tape& tape, const Var& x_TH, const Mlp::Inner& inner) const {
  const Var y_TH = shared_->down(tape, inner);
  if (!shared_gate_) return y_TH;
  const Var logit_T1 = ops::router_logits(tape, x_TH, shared_gate_, {});
  const ops::Routing gate =  // a single expert, whose weight is its sigmoid
      ops::route(tape, logit_T1, 1, {.score = kernels::RouterScore::sigmoid});
  const Var factor_T(gate.weights.value.view({y_TH.value.size(0)}), gate.weights.id);
  return ops::scale_rows(tape, y_TH, factor_T);
}

}  // namespace megatron::nn
