// T tokens, H hidden, E experts, k choices per token
#include "nn/router.h"

#include <cmath>

#include "base/error.h"
#include "base/philox.h"
#include "nn/moe.h"
#include "parallel/collectives.h"

namespace megatron::nn {
namespace {

constexpr std::string_view kLogits = "router logits";  // name of their gather

// Sums of the weights of the tokens' losses in the objective, f64 [count], for `count` runs of
// consecutive tokens from `first` on, over all context ranks: the weight of a mean over such a run.
// factors [count]: of the results; or undefined.
Tensor objective_weights(Tape& tape, const Batch& batch, int64_t first, int64_t count,
                         int64_t length, comm::Group* context, const Tensor& factors) {
  Tensor weights = tape.empty({count}, DType::f64, "moe.objective_weights");
  for (int64_t i = 0; i < count; ++i)
    tape.kernels().sum({.x = batch.loss_weights.slice(0, first + i * length, length),
                        .out = weights.slice(0, i, 1).view({})},
                       tape.stream());
  parallel::sum_over(tape, weights, context, "moe.objective_weights");
  if (!factors.defined()) return weights;
  Tensor scaled = tape.empty({count}, DType::f64, "moe.objective_weights");
  for (int64_t i = 0; i < count; ++i)
    tape.kernels().sum({.x = weights.slice(0, i, 1),
                        .weights = factors.slice(0, i, 1),
                        .out = scaled.slice(0, i, 1).view({})},
                       tape.stream());
  return scaled;
}

Tensor scaled(Tape& tape, const Tensor& x, double factor) {
  Tensor out = tape.empty(x.shape(), x.dtype(), "moe.metric");
  tape.kernels().scale({.factor = factor, .x = x, .out = out}, tape.stream());
  return out;
}

// Returns `count` rows, where row to[t] is x[t,:] if to[t] >= 0; rows without a source are -1.
Tensor put(Tape& tape, const Tensor& x, const Tensor& to, int64_t count) {
  const int64_t width = x.size(1);
  Tensor out = tape.empty({count, width}, x.dtype(), "moe.kept");
  tape.kernels().fill({.out = out, .value = -1}, tape.stream());
  tape.kernels().put_rows(
      {.x = x.view({x.size(0), 1, width}), .rows = to, .out = out.view({1, count, 1, width})},
      tape.stream());
  return out;
}

void report_mean(Tape& tape, std::string_view metric, int64_t layer, const Tensor& sums,
                 double factor, bool divided) {
  Tensor ones = tape.empty(sums.shape(), sums.dtype(), "moe.ones");
  tape.kernels().fill({.out = ones, .value = 1}, tape.stream());
  tape.report(
      metric,
      {.values = scaled(tape, sums, factor), .weights = ones, .divided = divided, .layer = layer});
}

// x [S,N] with each row multiplied by its factor; x itself without factors.
Tensor scaled_rows(Tape& tape, const Tensor& x, const Tensor& factors) {
  if (!factors.defined()) return x;
  Tensor out = tape.empty(x.shape(), x.dtype(), "moe.means");
  tape.kernels().scale_rows({.x = x, .factors = factors, .out = out}, tape.stream());
  return out;
}

// Reports the mean over all tokens of a micro-batch that are not padding, from sums over the tokens
// of this rank, one of `ranks` that share them.
void report_real_mean(Tape& tape, std::string_view metric, int64_t layer, const Tensor& sums,
                      const RealTokens& real, int ranks, bool divided) {
  const int64_t all = real.numbers.size(0) - 1;
  const auto sum = [&](const Tensor& x, const Tensor& weights) {
    Tensor out = tape.empty({1}, DType::f64, "moe.metric");
    tape.kernels().sum({.x = x, .weights = weights, .out = out.view({})}, tape.stream());
    return out;
  };
  const Tensor of_rank = sum(scaled(tape, sums, ranks), {});
  tape.report(metric, {.values = sum(of_rank, real.inverses.slice(0, all, 1)),
                       .weights = real.numbers.slice(0, all, 1),
                       .divided = divided,
                       .layer = layer});
}

}  // namespace

std::vector<MetricDefinition> router_metrics(const std::vector<ExpertLayer>& layers,
                                             const RouterTraining& training) {
  std::vector<MetricDefinition> metrics = expert_metrics(layers, training);
  if (layers.empty()) return metrics;
  std::vector<int64_t> numbers;
  for (const ExpertLayer& layer : layers) numbers.push_back(layer.layer);
  const auto add = [&](std::string_view name) {
    metrics.push_back({.name = std::string(name), .layers = numbers});
  };
  if (training.aux_loss != 0) add(kAuxLoss);
  if (training.sequence_aux_loss != 0) add(kSequenceAuxLoss);
  if (training.global_aux_loss != 0) add(kGlobalAuxLoss);
  if (training.z_loss != 0) add(kRouterZLoss);
  add(kRouterEntropy);
  metrics.back().least_stands_out = true;  // highlights the router that decides most clearly
  return metrics;
}

Router::Router(Builder& builder, const std::string& name, int64_t layer, int64_t hidden,
               const MoeConfig& config, const RouterTraining& training, parallel::Init init,
               uint64_t seed)
    : layer_(layer),
      name_(name),
      seed_(seed),
      form_(config.router),
      experts_(config.experts),
      choices_(config.choices),
      tensor_(builder.tensor()),
      context_(builder.ranks().context),
      replicas_(builder.ranks().replicas),
      training_(training) {
  weight_ = builder.add(name + ".weight", {config.experts, hidden}, init);
  if (config.router_bias) bias_ = builder.add(name + ".bias", {config.experts}, zeros());
  if (training.global_aux_loss != 0)
    step_counts_ = &builder.add_step_sum({config.experts}, kernels::accumulator(builder.type()));
  MG_CHECK(!training.quantile || config.correction_bias,
           "--moe-router-load-balancing-type quantile_balancing changes a correction bias, which "
           "this model's routers do not have; use aux_loss");
  MG_CHECK(!training.quantile || (form_.groups == 1 && choices_ < config.experts),
           "--moe-router-load-balancing-type quantile_balancing needs a router without groups that "
           "chooses only some of the experts, not {} of {} in {} groups; use aux_loss",
           choices_, config.experts, form_.groups);
  MG_CHECK(!training.sinkhorn || (form_.groups == 1 && !config.correction_bias),
           "--moe-router-load-balancing-type sinkhorn assigns tokens evenly to all experts, but "
           "this model's routers have {}; use aux_loss",
           config.correction_bias ? "a correction bias" : "groups of experts");
  if (config.correction_bias && training.quantile) {
    correction_ = &builder.add_state(
        name + ".correction", {config.experts}, zeros(),
        {.observed = Shape{config.experts + 1},
         .update = [ema = training.quantile_ema](const ModuleState& state, Stream& stream) {
           kernels::table(stream).threshold_bias(
               {.ema = ema, .sums = state.observed, .bias = state.value()}, stream);
         }});
  } else if (config.correction_bias) {
    correction_ = &builder.add_state(
        name + ".correction", {config.experts}, zeros(),
        {.observed = {},
         .update = [rate = training.bias_update_rate](const ModuleState& state, Stream& stream) {
           kernels::table(stream).expert_bias(
               {.rate = rate, .counts = state.observed, .bias = state.value()}, stream);
         }});
  }
}

ops::Routing Router::operator()(Tape& tape, const Var& x_TH, const Batch& batch) const {
  const bool training = trains(tape);
  const Var in_TH =
      training ? ops::jitter(tape, x_TH, training_.input_jitter, noise_of(batch, ".jitter")) : x_TH;
  Var logits_TE = ops::router_logits(tape, in_TH, weight_, bias_, training_.double_logits);
  if (training) logits_TE = with_losses(tape, with_noise(tape, logits_TE, batch), batch);
  if (training_.quantile) observe_thresholds(tape, logits_TE.value, batch);
  ops::Routing routing = ops::route(
      tape, logits_TE, choices_, form_, correction_ == nullptr ? Tensor() : correction_->value(),
      training && training_.sinkhorn ? even_choice(tape, logits_TE.value, batch) : Tensor());
  if (const Tensor& rows = batch.real.rows; rows.defined()) {
    const int64_t own = routing.experts.size(0), first = first_held(own);
    routing.experts = put(tape, routing.experts, rows.slice(0, first, own), batch.layout.rows())
                          .slice(0, first, own);
  }
  return routing;
}

// Index among the tokens of this context rank of the first one that this rank has.
int64_t Router::first_held(int64_t own) const {
  return tensor_.divides_tokens() ? tensor_.rank() * own : 0;
}

// Rows that key the random numbers of this rank's tokens.
kernels::NoiseRows Router::noise_of(const Batch& batch, std::string_view what) const {
  return {.seed = seed_,
          .stream = hash_name(name_ + std::string(what)),
          .tokens = batch.rows_of(tensor_)};
}

Var Router::with_noise(Tape& tape, const Var& logits_TE, const Batch& batch) const {
  using Of = kernels::RandomLogitsArgs::Of;
  Var logits = logits_TE;
  if (training_.random_logits)
    logits = ops::random_logits(tape, logits,
                                {.replaces = true, .rows = noise_of(batch, ".random_logits")});
  if (training_.logits_bias == 0) return logits;
  return ops::random_logits(tape, logits,
                            {.scale = std::abs(training_.logits_bias),
                             .of = training_.logits_bias < 0 ? Of::all : Of::sample,
                             .rows = noise_of(batch, ".logits_bias")});
}

// Rows of all tokens of the micro-batch, those of a rank one after another.
Tensor Router::all_rows(Tape& tape, const Tensor& own, std::string_view call) const {
  Tensor rows = own;
  for (comm::Group* group : {tensor_.divides_tokens() ? tensor_.group : nullptr, context_})
    if (group != nullptr)
      rows = parallel::gathered_rows(tape, rows, *group, call, MemoryClass::activations);
  return rows;
}

// Index in all_rows of this rank's first token.
int64_t Router::first_row(int64_t own) const {
  const int64_t held = tensor_.divides_tokens() ? own * tensor_.size() : own;
  return (context_ == nullptr ? 0 : context_->rank() * held) + first_held(own);
}

// Negative for padding among all_rows; undefined: there is none.
Tensor Router::all_counted(Tape& tape, const Batch& batch) const {
  const Tensor& held = batch.real.rows;
  if (!held.defined() || context_ == nullptr) return held;
  const Tensor all = parallel::gathered_rows(tape, held.view({held.size(0), 1}), *context_,
                                             "router padding", MemoryClass::activations);
  return all.view({all.size(0)});
}

Tensor Router::even_choice(Tape& tape, const Tensor& logits_TE, const Batch& batch) const {
  const Tensor all = all_rows(tape, logits_TE, kLogits);
  const Tensor choice = tape.empty(all.shape(), all.dtype(), "moe.sinkhorn");
  tape.kernels().sinkhorn({.logits = all, .counted = all_counted(tape, batch), .out = choice},
                          tape.stream());
  return choice.slice(0, first_row(logits_TE.size(0)), logits_TE.size(0));
}

Tensor Router::kept(Tape& tape, const ops::Routing& routing, int64_t capacity,
                    const Batch& batch) const {
  const parallel::ContextTokens& tokens = batch.context_tokens;
  const auto in_order = [&](const Tensor& own) {
    const Tensor all = all_rows(tape, own, "expert capacity");
    return tokens.part_rows.defined() ? put(tape, all, tokens.part_rows, all.size(0)) : all;
  };
  const bool weighed = training_.kept == kernels::KeptRows::largest;
  const Tensor experts = in_order(routing.experts),
               weights = weighed ? in_order(routing.weights.value) : Tensor();
  const int64_t choices = experts.elements(),
                most = std::min(choices, experts_ * capacity * batch.layout.sequences);
  const auto integers = [&](Shape shape) { return tape.empty(shape, DType::i32, "moe.kept"); };
  const Tensor slots = integers({most}), rows = integers(experts.shape());
  tape.kernels().expert_rows({.experts = experts,
                              .weights = weights,
                              .capacity = capacity,
                              .segment = batch.layout.length,
                              .kept = training_.kept,
                              .factor = batch.real.rows.defined() ? training_.capacity_factor : 0,
                              .all_experts = experts_,
                              .offsets = integers({experts_ + 1}),
                              .slots = slots,
                              .rows = rows},
                             tape.stream());
  // The experts of the rows that there are, and then of their slots.
  const Tensor of_rows = put(tape, experts.view({choices, 1}), rows.view({choices}), most),
               of_slots = put(tape, of_rows, slots, choices).view(experts.shape());
  const Tensor by_rank = tokens.whole_rows.defined()
                             ? put(tape, of_slots, tokens.whole_rows, of_slots.size(0))
                             : of_slots;
  const int64_t own = routing.experts.size(0);
  return by_rank.slice(0, first_row(own), own);
}

// Each micro-batch adds its thresholds, and 1 to their number.
void Router::observe_thresholds(Tape& tape, const Tensor& logits_TE, const Batch& batch) const {
  const Tensor observed = correction_->observe(tape);
  if (!observed.defined()) return;
  const Tensor all = all_rows(tape, logits_TE, kLogits);
  const Tensor seen = tape.empty(observed.shape(), observed.dtype(), "moe.thresholds");
  tape.kernels().fill({.out = seen, .value = 1}, tape.stream());
  tape.kernels().expert_thresholds({.form = form_,
                                    .k = choices_,
                                    .logits = all,
                                    .bias = correction_->value(),
                                    .counted = all_counted(tape, batch),
                                    .thresholds = seen.slice(0, 0, all.size(1))},
                                   tape.stream());
  tape.kernels().add({.a = observed, .b = seen, .out = observed}, tape.stream());
}

// The loss of a micro-batch counts the choices of all its tokens; those of sequences do not depend
// on the other sequences. The step's loss weighs each sequence separately, so the assignment of
// sequences to micro-batches does not matter.
Var Router::with_losses(Tape& tape, const Var& logits_TE, const Batch& batch) const {
  Var logits = logits_TE;
  const int ranks = tensor_.divides_tokens() ? tensor_.size() : 1;
  if (training_.aux_loss != 0)
    logits =
        add_balance_loss(tape, logits, batch,
                         {.ranks = ranks, .coefficient = training_.aux_loss, .metric = kAuxLoss});
  const BalanceLoss of_sequences =
      sequence_loss(batch.layout.held(), logits_TE.value.size(0), batch.layout.sequences);
  if (training_.global_aux_loss != 0)
    logits = add_balance_loss(tape, logits, batch,
                              {.segments = of_sequences.segments,
                               .ranks = of_sequences.ranks,
                               .of_sequences = true,
                               .coefficient = training_.global_aux_loss,
                               .metric = kGlobalAuxLoss,
                               .of_step = true});
  return add_balance_loss(tape, logits, batch, of_sequences);
}

// If tokens are divided among ranks, a sequence may span several ranks, or a rank may hold several
// sequences.
Router::BalanceLoss Router::sequence_loss(int64_t length, int64_t own, int64_t sequences) const {
  BalanceLoss loss{.of_sequences = true,
                   .coefficient = training_.sequence_aux_loss,
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

// Sums the counts of segments that span `ranks` consecutive tensor-parallel ranks over these ranks,
// and over the context ranks, each of which holds a part of every segment.
void Router::sum_counts(Tape& tape, const Tensor& counts, int ranks) const {
  sum_tensor_counts(tape, counts, ranks);
  parallel::sum_over(tape, counts, context_, "expert load");
}

void Router::sum_tensor_counts(Tape& tape, const Tensor& counts, int ranks) const {
  if (!tensor_.divides_tokens() || ranks == 1) return;
  if (ranks == tensor_.size())
    return parallel::sum_in_place(tape, counts, *tensor_.group, "expert load");
  // Counts of sequences that span several ranks: gathered, and summed by this rank.
  const int64_t experts = counts.size(1);
  const Tensor all = parallel::gathered_rows(tape, counts, *tensor_.group, "expert load",
                                             MemoryClass::activations);
  const int64_t first = tensor_.rank() / ranks * ranks;
  tape.kernels().column_sum(
      {.x = all.slice(0, first, ranks), .out = {.out = counts.view({experts})}}, tape.stream());
}

// Each expert's share of all choices in the step so far, the same for each segment [S,E]; counts
// are this micro-batch's.
Tensor Router::shares_of_step(Tape& tape, const Tensor& counts) const {
  return tape.once([&] {
    Tensor seen = tape.empty({counts.size(1)}, counts.dtype(), "moe.counts_of_step");
    tape.kernels().column_sum({.x = counts, .out = {.out = seen}}, tape.stream());
    if (tensor_.divides_tokens()) parallel::sum_in_place(tape, seen, *tensor_.group, "expert load");
    if (replicas_ != nullptr)
      parallel::sum_in_place(tape, seen, *replicas_, "expert load of the step");
    if (const Tensor& sum = step_counts_->value; sum.defined()) {
      tape.kernels().add({.a = sum, .b = seen, .out = sum}, tape.stream());
      seen = sum;
    }
    const Tensor shares = tape.empty(counts.shape(), counts.dtype(), "moe.shares");
    for (int64_t s = 0; s < counts.size(0); ++s)
      tape.kernels().expert_shares(
          {.counts = seen, .shares = shares.slice(0, s, 1).view(seen.shape())}, tape.stream());
    return shares;
  });
}

// A loss is coefficient * E / (k n^2) * sum over e of counts[e] p[e] for a segment of n tokens; it
// is the mean of the values E / n * sums with the counts as their weights. With a step's shares of
// all choices: coefficient * E / n * sum over e of shares[e] p[e]. Segments with padding have
// different n, which are factors of their rows; then n below is 1.
Var Router::add_balance_loss(Tape& tape, const Var& logits_TE, const Batch& batch,
                             const BalanceLoss& loss) const {
  const Tensor& logits = logits_TE.value;
  const int64_t tokens = logits.size(0), experts = logits.size(1), segments = loss.segments;
  const DType type = logits.dtype();
  const auto results = [&](Shape shape) { return tape.empty(shape, type, "moe.router_sums"); };
  Tensor counts = results({segments, experts});
  const Tensor sums = results({segments, experts}), squares = results({segments}),
               entropy = results({segments});
  const RealTokens& real = batch.real;
  const bool pads = real.rows.defined();
  const Tensor counted = pads ? real.rows.slice(0, first_held(tokens), tokens) : Tensor(),
               inverses = pads ? inverses_of(batch, loss, tokens) : Tensor();
  const auto score = form_.score;
  tape.kernels().router_sums({.score = score,
                              .k = choices_,
                              .logits = logits,
                              .counted = counted,
                              .sums = sums,
                              .counts = counts,
                              .squares = squares,
                              .entropy = entropy},
                             tape.stream());
  const bool divided = tensor_.divides_tokens();
  if (loss.of_step) {
    counts = shares_of_step(tape, counts);
  } else {
    sum_counts(tape, counts, loss.ranks);
  }
  // held: tokens of a segment on this context rank, length: on all.
  const int ranks = loss.ranks * (context_ == nullptr ? 1 : context_->size());
  const int64_t own = tokens / segments, held = own * loss.ranks, length = own * ranks;
  const double n = pads ? 1 : static_cast<double>(length), scale = static_cast<double>(experts) / n;
  // Each rank of a segment reports the counts of all ranks and its own sums.
  if (!loss.metric.empty())
    tape.report(loss.metric,
                {.values = scaled(tape, scaled_rows(tape, sums, inverses), scale * ranks)
                               .view({segments * experts}),
                 .weights = counts.view({segments * experts}),
                 .divided = divided,
                 .layer = layer_});
  if (loss.reports_rest) {
    const int sharing =
        (divided ? tensor_.size() : 1) * (context_ == nullptr ? 1 : context_->size());
    const auto report = [&](std::string_view metric, const Tensor& of_tokens) {
      if (pads) report_real_mean(tape, metric, layer_, of_tokens, real, sharing, divided);
      else report_mean(tape, metric, layer_, of_tokens, 1 / static_cast<double>(own), divided);
    };
    report(kRouterEntropy, entropy);
    if (loss.z != 0) report(kRouterZLoss, squares);
  }
  if (loss.coefficient == 0 && loss.z == 0) return logits_TE;
  const int64_t first = divided ? tensor_.rank() * tokens / held * held : 0;
  return ops::add_router_loss(
      tape, logits_TE,
      {.score = score,
       .balance =
           loss.coefficient * scale / ((loss.of_step ? 1 : static_cast<double>(choices_) * n)),
       .z = loss.z / n,
       .counts = loss.of_step ? counts : scaled_rows(tape, counts, inverses),
       .weight = objective_weights(tape, batch, first, segments, held, context_, inverses),
       .counted = counted});
}

// The inverse numbers of tokens of a loss's segments, of `own` tokens of this rank.
Tensor Router::inverses_of(const Batch& batch, const BalanceLoss& loss, int64_t own) const {
  const Tensor& all = batch.real.inverses;
  if (!loss.of_sequences) return all.slice(0, batch.layout.sequences, 1);
  return all.slice(0, first_held(own) / batch.layout.held(), loss.segments);
}

}  // namespace megatron::nn
