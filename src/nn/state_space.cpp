#include "nn/state_space.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "ops/columns.h"

namespace megatron::nn {
namespace {

const StateSpaceConfig& checked(const StateSpaceConfig& c, const Builder& builder,
                                const parallel::ContextParallel& context) {
  check_division(c, builder.tensor().size(), context);
  return c;
}

ops::StateSpaceShape shape_of(const StateSpaceConfig& c, int ranks) {
  return {.heads = c.heads / ranks,
          .head_size = c.head_size,
          .groups = std::max<int64_t>(c.groups / ranks, 1),
          .states = c.states,
          .sharing = std::max<int64_t>(ranks / c.groups, 1)};
}

// As torch initializes a convolution of one channel for each output.
parallel::Init conv_init(const StateSpaceConfig& c) {
  return {parallel::Init::Kind::uniform, 1 / std::sqrt(static_cast<double>(c.conv_width))};
}

// The logarithms of decays' rates, which are uniform in [1, 16).
constexpr parallel::Init kRates{.kind = parallel::Init::Kind::log_of_uniform, .low = 1, .high = 16};

}  // namespace

void check_division(const StateSpaceConfig& c, int ranks,
                    const parallel::ContextParallel& context) {
  MG_CHECK(c.heads % ranks == 0,
           "--mamba-num-heads {} is not a multiple of --tensor-model-parallel-size {}: every rank "
           "computes the same number of heads; change one of them",
           c.heads, ranks);
  MG_CHECK(
      c.groups % ranks == 0 || (ranks % c.groups == 0 && c.states % (ranks / c.groups) == 0),
      "--mamba-num-groups {} is not a multiple of --tensor-model-parallel-size {}, nor can its "
      "ranks share each group and its {} states (--mamba-state-dim) evenly; lower the latter",
      c.groups, ranks, c.states);
  const int exchanging = context.head_ranks();
  const int64_t heads = c.heads / ranks, groups = std::max<int64_t>(c.groups / ranks, 1);
  MG_CHECK(
      heads % exchanging == 0 && (groups % exchanging == 0 || exchanging % groups == 0),
      "--cp-comm-type {} divides the {} heads and {} groups of a tensor-parallel rank "
      "(--mamba-num-heads {}, --mamba-num-groups {}, --tensor-model-parallel-size {}) among the {} "
      "ranks of {}: use p2p or all_gather, or change one of them",
      name(context.exchange), heads, groups, c.heads, c.groups, ranks, exchanging,
      context.exchange == parallel::ContextExchange::a2a
          ? "--context-parallel-size"
          : "a group of --hierarchical-context-parallel-sizes");
}

StateSpace::StateSpace(Builder& builder, const std::string& name, const StateSpaceConfig& config,
                       const Place& place)
    : config_(checked(config, builder, builder.ranks().context_parallel(place.index))),
      place_(place),
      type_(builder.type()),
      tensor_(builder.tensor()),
      context_(builder.ranks().context_parallel(place.index)),
      in_proj_(builder, name + ".in_proj", place.hidden, config.blocks(), config.bias, place.init),
      out_proj_(builder, name + ".out_proj", config.width(), place.hidden, config.output_bias,
                place.output_init) {
  const int64_t group = config.groups * config.states;
  const auto divided = [](std::vector<int64_t> blocks) {
    return std::vector{parallel::Division{.axis = 0, .blocks = std::move(blocks)}};
  };
  const auto add_number = [&](const char* suffix, parallel::Init init) {
    return Weight(builder.add(
        name + suffix, {config.heads}, init,
        {.divisions = divided({config.heads}), .type = kernels::accumulator(builder.type())}));
  };
  space_ = {
      .shape = shape_of(config, builder.tensor().size()),
      .conv =
          builder.add(name + ".conv.weight", {config.channels(), 1, config.conv_width},
                      conv_init(config), {.divisions = divided({config.width(), group, group})}),
      .conv_bias = {},
      .a_log = add_number(".a_log", kRates),
      .dt_bias = add_number(".dt_bias", {.kind = parallel::Init::Kind::inverse_softplus,
                                         .low = config.initial_min_step,
                                         .high = config.initial_max_step,
                                         .floor = config.initial_step_floor}),
      .d = add_number(".d", ones()),
      .norm = {},
      .min_step = config.min_step,
      .max_step = config.max_step > 0 ? config.max_step : std::numeric_limits<double>::infinity(),
      .order = config.order,
      .eps = config.norm_epsilon};
  if (config.conv_bias)
    space_.conv_bias = builder.add(name + ".conv.bias", {config.channels()}, conv_init(config),
                                   {.divisions = divided({config.width(), group, group})});
  if (config.order != kernels::GateOrder::gate_only)
    space_.norm = builder.add(name + ".norm.weight", {config.width()}, ones(),
                              {.divisions = divided({config.width()})});
}

std::vector<SlotTensor> StateSpace::slot() const {
  const ops::StateSpaceShape& s = space_.shape;
  const DType wide = kernels::accumulator(type_);
  return {{.shape = {config_.conv_width - 1, s.channels()}, .type = type_},
          {.shape = {s.heads, s.head_size, s.states}, .type = wide},
          {.shape = {kernels::kScanChunk, s.heads, s.head_size}, .type = type_},
          {.shape = {kernels::kScanChunk, s.groups, s.states}, .type = type_},
          {.shape = {kernels::kScanChunk, s.heads}, .type = wide}};
}

Var StateSpace::operator()(Tape& tape, const Var& x_TH, const Batch& batch) const {
  MG_CHECK(batch.texts.empty(),
           "a state space reads texts of one length, and these are concatenated; this model is a "
           "decoder");
  Var projected = in_proj_(tape, x_TH);
  if (const std::vector<double>& m = config_.multipliers; !m.empty()) {
    const ops::StateSpaceShape& s = space_.shape;
    const int64_t group = s.group_columns();
    projected = ops::scale_columns(
        tape, std::move(projected),
        {{s.width(), m[0]}, {s.width(), m[1]}, {group, m[2]}, {group, m[3]}, {s.heads, m[4]}});
  }
  const Continuation& c = batch.continuation;
  if (c.state != nullptr) return out_proj_(tape, continued(tape, projected.value, c));
  return out_proj_(
      tape,
      ops::state_space(tape, projected, batch.layout.sequences, space_, batch.segment_starts,
                       parallel::state_space_exchange(space_.shape, config_.conv_width,
                                                      batch.context_tokens, context_, tensor_)));
}

Var StateSpace::continued(Tape& tape, const Tensor& projected, const Continuation& at) const {
  const SequenceState& state = *at.state;
  const int64_t layer = place_.layer;
  Tensor out = tape.empty({projected.size(0), space_.shape.width()}, type_, "state_space");
  const std::shared_ptr<const ops::StateSpaceExchange> exchange =
      parallel::state_space_exchange(space_.shape, config_.conv_width, {}, {}, tensor_);
  for (const Continuation::Call& call : state.slot_group(at, layer).calls) {
    const int64_t rows = call.q_positions.elements();
    ops::continue_state_space(projected.slice(0, call.first, rows), space_,
                              {.tails = state.slots(layer, 0),
                               .scan = {.state = state.slots(layer, 1),
                                        .x = state.slots(layer, 2),
                                        .b = state.slots(layer, 3),
                                        .steps = state.slots(layer, 4)},
                               .positions = call.q_positions,
                               .block_table = call.block_table,
                               .block_size = state.shape().block_size},
                              out.slice(0, call.first, rows), tape, exchange.get());
  }
  return Var(out);
}

}  // namespace megatron::nn
