#include "models/decoder/mixers/state_space.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/causal_conv.h"
#include "models/decoder/value_checks.h"

namespace megatron::models {
namespace {

using StateMixer = LayerPart<nn::StateSpaceConfig>;
using kernels::GateOrder;

// Appended to the mixer's name in the names of its parameters.
constexpr const char* kModule = ".state_space";

class StateSpaceSublayer final : public Sublayer {
 public:
  template <class... Args>
  explicit StateSpaceSublayer(Args&&... args) : space_(std::forward<Args>(args)...) {}
  Var operator()(Tape& tape, const Var& x_TH, const nn::Batch& batch, bool) const override {
    return space_(tape, x_TH, batch);
  }
  nn::LayerCache cache() const override { return {.slot = space_.slot()}; }

 private:
  nn::StateSpace space_;
};

double silu(double x) { return x / (1 + std::exp(-x)); }
double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

PlainRow part_of(const PlainRow& row, int64_t begin, int64_t size) {
  return {row.begin() + begin, row.begin() + begin + size};
}

// Each channel's last inputs, weighted, the latest by the last weight; then SiLU.
PlainRows plain_convolved(const PlainParts& parts, const PlainRows& x, const std::string& name,
                          const nn::StateSpaceConfig& s) {
  const int64_t width = s.conv_width;
  const PlainRow weight = parts.tensor(name + ".weight", {s.channels(), 1, width}),
                 bias = s.conv_bias ? parts.tensor(name + ".bias", {s.channels()}) : PlainRow();
  PlainRows y;
  for (int64_t t = 0; t < std::ssize(x); ++t) {
    PlainRow row;
    for (int64_t c = 0; c < s.channels(); ++c) {
      double sum = bias.empty() ? 0 : bias[static_cast<size_t>(c)];
      for (int64_t back = 0; back < std::min(width, t + 1); ++back)
        sum += weight[static_cast<size_t>(c * width + width - 1 - back)] *
               x[static_cast<size_t>(t - back)][static_cast<size_t>(c)];
      row.push_back(silu(sum));
    }
    y.push_back(std::move(row));
  }
  return y;
}

// The numbers of a head, and its state.
struct PlainHead {
  double rate, bias, skip;
  PlainRow state;  // [P,N]
};

// Appends head h's output of a token to y. x: its P inputs; b, c: the group's N numbers.
void plain_step(PlainHead& head, const nn::StateSpaceConfig& s, double dt,
                std::span<const double> x, std::span<const double> b, std::span<const double> c,
                PlainRow& y) {
  double step = std::max(softplus(dt + head.bias), s.min_step);
  if (s.max_step > 0) step = std::min(step, s.max_step);
  const double decay = std::exp(-step * head.rate);
  for (size_t p = 0; p < x.size(); ++p) {
    double sum = head.skip * x[p];
    for (size_t n = 0; n < b.size(); ++n) {
      double& state = head.state[p * b.size() + n];
      state = decay * state + step * x[p] * b[n];
      sum += state * c[n];
    }
    y.push_back(sum);
  }
}

PlainRows plain_scan(const PlainParts& parts, const PlainRows& convolved, const PlainRows& steps,
                     const std::string& name, const nn::StateSpaceConfig& s) {
  const PlainRow rates = parts.tensor(name + ".a_log", {s.heads}),
                 biases = parts.tensor(name + ".dt_bias", {s.heads}),
                 skips = parts.tensor(name + ".d", {s.heads});
  std::vector<PlainHead> heads;
  for (size_t h = 0; h < rates.size(); ++h)
    heads.push_back({std::exp(rates[h]), biases[h], skips[h],
                     PlainRow(static_cast<size_t>(s.head_size * s.states))});
  const auto size = static_cast<size_t>(s.head_size), states = static_cast<size_t>(s.states);
  PlainRows out;
  for (size_t t = 0; t < convolved.size(); ++t) {
    const std::span<const double> row = convolved[t];
    const auto b = row.subspan(static_cast<size_t>(s.width())),
               c = b.subspan(static_cast<size_t>(s.groups) * states);
    PlainRow y;
    for (size_t h = 0; h < heads.size(); ++h) {
      const size_t group = h * static_cast<size_t>(s.groups) / heads.size();
      plain_step(heads[h], s, steps[t][h], row.subspan(h * size, size),
                 b.subspan(group * states, states), c.subspan(group * states, states), y);
    }
    out.push_back(std::move(y));
  }
  return out;
}

PlainRow plain_normed(const PlainRow& x, const PlainRow& gates, const PlainRow& weight,
                      const nn::StateSpaceConfig& s) {
  const bool first = s.order != GateOrder::norm_first;
  const auto group = x.size() / static_cast<size_t>(s.groups);
  PlainRow y = x;
  for (size_t i = 0; first && i < y.size(); ++i) y[i] *= silu(gates[i]);
  if (s.order == GateOrder::gate_only) return y;
  for (size_t begin = 0; begin < y.size(); begin += group) {
    double squares = 0;
    for (size_t i = begin; i < begin + group; ++i) squares += y[i] * y[i];
    const double root = std::sqrt(squares / static_cast<double>(group) + s.norm_epsilon);
    for (size_t i = begin; i < begin + group; ++i) y[i] *= weight[i] / root;
  }
  for (size_t i = 0; !first && i < y.size(); ++i) y[i] *= silu(gates[i]);
  return y;
}

}  // namespace

void StateMixer::check(const DecoderValue&, const nn::StateSpaceConfig& s) {
  check_size(s.heads, kMaxHeads, "mamba-num-heads");
  check_size(s.head_size, kMaxHeadSize, "mamba-head-dim");
  check_size(s.groups, kMaxHeads, "mamba-num-groups");
  check_size(s.states, kMaxHeadSize, "mamba-state-dim");
  MG_CHECK(s.heads % s.groups == 0,
           "--mamba-num-heads {} is not a multiple of --mamba-num-groups {}; change one of them",
           s.heads, s.groups);
  MG_CHECK(s.width() <= kMaxWidth && s.channels() <= kMaxWidth,
           "{} heads (--mamba-num-heads) of size {} (--mamba-head-dim) with {} groups of {} states "
           "exceed a width of {}",
           s.heads, s.head_size, s.groups, s.states, kMaxWidth);
  MG_CHECK(s.conv_width >= 2 && s.conv_width <= kernels::kMaxConvolution,
           "the convolution of a state space (conv_kernel, mamba_d_conv) has {} tokens; the number "
           "must lie in [2, {}]",
           s.conv_width, kernels::kMaxConvolution);
  MG_CHECK(
      s.min_step >= 0 && (s.max_step == 0 || s.max_step >= s.min_step) && std::isfinite(s.max_step),
      "the steps of a state space have the limits {} and {}; the first must be 0 or more, and "
      "the second above it",
      s.min_step, s.max_step);
  MG_CHECK(s.initial_min_step > 0 && s.initial_max_step >= s.initial_min_step &&
               s.initial_step_floor >= 0 && std::isfinite(s.initial_max_step),
           "the steps of a state space are initialized from {} to {}, at least {}; the numbers "
           "must be positive, and the second above the first",
           s.initial_min_step, s.initial_max_step, s.initial_step_floor);
  check_number(s.norm_epsilon, s.norm_epsilon > 0, "norm-epsilon", "positive");
  MG_CHECK(s.multipliers.empty() || s.multipliers.size() == 5,
           "a state space has {} multipliers; it needs five, of z, x, b, c and dt",
           s.multipliers.size());
  for (const double factor : s.multipliers)
    MG_CHECK(std::isfinite(factor) && factor != 0,
             "a multiplier of a state space is {}; it must be a number other than 0", factor);
}

int64_t StateMixer::parameters(const nn::StateSpaceConfig& s, const nn::NormConfig&, int64_t h) {
  return s.projected() * (s.bias ? h + 1 : h) +
         s.channels() * (s.conv_width + (s.conv_bias ? 1 : 0)) + 3 * s.heads +
         (s.order == GateOrder::gate_only ? 0 : s.width()) + s.width() * h +
         (s.output_bias ? h : 0);
}

// What the recurrence multiplies: b and x make an outer product, and the state and c a product.
double StateMixer::forward_flops(const nn::StateSpaceConfig& s, int64_t hidden, int64_t length) {
  const auto h = static_cast<double>(hidden), width = static_cast<double>(s.width());
  return 2 * static_cast<double>(length) *
         (h * static_cast<double>(s.projected()) + h * width +
          2 * width * static_cast<double>(s.states));
}

void StateMixer::add_facts(const nn::StateSpaceConfig& s, ModelFacts& facts) {
  if (!facts.state_space)
    facts.state_space = StateSpaceFacts{
        .heads = s.heads, .head_size = s.head_size, .groups = s.groups, .states = s.states};
}

std::unique_ptr<Sublayer> StateMixer::build(nn::Builder& builder, const std::string& name,
                                            const nn::StateSpaceConfig& s,
                                            const LayerPlace& place) {
  return std::make_unique<StateSpaceSublayer>(
      builder, name + kModule, s,
      nn::StateSpace::Place{.hidden = place.model.hidden_size,
                            .layer = place.state_layer,
                            .index = place.index,
                            .init = matrix_init(place.model),
                            .output_init = output_init(place.model)});
}

PlainRows StateMixer::plain(const PlainParts& parts, const PlainRows& x, const std::string& mixer,
                            const nn::StateSpaceConfig& s, const nn::NormConfig&) {
  const std::string name = mixer + kModule;
  PlainRows gates, channels, steps;
  for (PlainRow row : parts.linear(x, name + ".in_proj", s.projected(), s.bias)) {
    size_t at = 0, block = 0;
    for (const int64_t size : s.blocks()) {
      const double factor = s.multipliers.empty() ? 1 : s.multipliers[block++];
      for (int64_t i = 0; i < size; ++i) row[at++] *= factor;
    }
    gates.push_back(part_of(row, 0, s.width()));
    channels.push_back(part_of(row, s.width(), s.channels()));
    steps.push_back(part_of(row, s.width() + s.channels(), s.heads));
  }
  const PlainRows y =
      plain_scan(parts, plain_convolved(parts, channels, name + ".conv", s), steps, name, s);
  const PlainRow weight = s.order == GateOrder::gate_only
                              ? PlainRow()
                              : parts.tensor(name + ".norm.weight", {s.width()});
  PlainRows out;
  for (size_t t = 0; t < y.size(); ++t) out.push_back(plain_normed(y[t], gates[t], weight, s));
  return parts.linear(out, name + ".out_proj", parts.model().hidden_size, s.output_bias);
}

}  // namespace megatron::models
