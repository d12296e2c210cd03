#include "models/decoder/feed_forwards/experts.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/divide.h"
#include "base/error.h"
#include "models/decoder/value_checks.h"

namespace megatron::models {
namespace {

using Dense = LayerPart<nn::MlpConfig>;
using Experts = LayerPart<nn::MoeConfig>;

class MoeSublayer final : public Sublayer {
 public:
  template <class... Args>
  explicit MoeSublayer(Args&&... args) : moe_(std::forward<Args>(args)...) {}
  Var operator()(Tape& tape, const Var& x_TH, const nn::Batch& batch, bool) const override {
    return moe_(tape, x_TH, batch);
  }
  int parts() const override { return moe_.stops() ? 3 : 1; }
  void run_part(int part, Tape& tape, Parted& parted, const nn::Batch& batch, bool) const override {
    if (part == 0) parted.in_flight = moe_.send(tape, parted.x_TH, batch);
    auto& tokens = std::any_cast<nn::Moe::Tokens&>(parted.in_flight);
    if (part == 1) moe_.compute(tape, tokens);
    if (part == 2) parted.y_TH = moe_.receive(tape, tokens);
  }

 private:
  nn::Moe moe_;
};

int64_t width_of(const nn::MoeConfig& moe, int64_t hidden) {
  return moe.latent > 0 ? moe.latent : hidden;
}

// Rows of expert e of [E,out,in] and [E,out], times x.
PlainRow product(const PlainRow& matrices, const PlainRow& biases, size_t e, size_t out,
                 const PlainRow& x) {
  PlainRow y(out);
  for (size_t o = 0; o < out; ++o) {
    if (!biases.empty()) y[o] = biases[e * out + o];
    for (size_t i = 0; i < x.size(); ++i) y[o] += matrices[(e * out + o) * x.size() + i] * x[i];
  }
  return y;
}

struct Choice {
  size_t expert;
  double weight;
};

void leave_best_groups(PlainRow& values, const kernels::RouterForm& r) {
  const size_t size = values.size() / static_cast<size_t>(r.groups);
  std::vector<std::pair<double, size_t>> worth;
  for (size_t g = 0; g < static_cast<size_t>(r.groups); ++g) {
    PlainRow group(values.begin() + static_cast<ptrdiff_t>(g * size),
                   values.begin() + static_cast<ptrdiff_t>((g + 1) * size));
    std::ranges::sort(group, std::greater());
    double sum = 0;
    for (size_t i = 0; i < static_cast<size_t>(r.group_best); ++i) sum += group[i];
    worth.emplace_back(-sum, g);
  }
  std::ranges::sort(worth);
  for (size_t i = static_cast<size_t>(r.chosen_groups); i < worth.size(); ++i)
    for (size_t e = 0; e < size; ++e) values[worth[i].second * size + e] = -INFINITY;
}

std::vector<Choice> chosen(const PlainRow& logits, const PlainRow& correction,
                           const nn::MoeConfig& moe) {
  const kernels::RouterForm& r = moe.router;
  PlainRow scores;
  double all = 0;
  for (const double x : logits) all += std::exp(x);
  for (const double x : logits) {
    const double sigmoid = 1 / (1 + std::exp(-x));
    const bool softmax = r.score == kernels::RouterScore::softmax;
    scores.push_back(softmax ? std::exp(x) / all
                     : r.score == kernels::RouterScore::sigmoid
                         ? sigmoid
                         : std::sqrt(std::log1p(std::exp(x))));
  }
  PlainRow values = r.score == kernels::RouterScore::softmax && !r.softmax_first ? logits : scores;
  for (size_t e = 0; e < correction.size(); ++e) values[e] += correction[e];
  leave_best_groups(values, r);
  std::vector<Choice> choices;
  double sum = 0;
  for (int64_t j = 0; j < moe.choices; ++j) {
    const auto best = static_cast<size_t>(std::ranges::max_element(values) - values.begin());
    choices.push_back({best, scores[best]});
    sum += scores[best];
    values[best] = -INFINITY;
  }
  // A softmax over the chosen experts equals the softmax over all, divided by the sum of the
  // chosen.
  const bool divides =
      r.normalised || (r.score == kernels::RouterScore::softmax && !r.softmax_first);
  for (Choice& choice : choices) choice.weight *= r.scale / (divides ? sum : 1);
  return choices;
}

void add_shared(const PlainParts& parts, PlainRows& y, const PlainRows& x, const std::string& name,
                const nn::MoeConfig& moe, const nn::NormConfig& norm) {
  const PlainRows shared = Dense::plain(parts, x, name + ".shared", moe.shared(), norm);
  const PlainRows gate =
      moe.shared_gate ? parts.linear(x, name + ".shared_gate", 1, false) : PlainRows();
  for (size_t t = 0; t < y.size(); ++t)
    for (size_t h = 0; h < y[t].size(); ++h)
      y[t][h] += shared[t][h] / (gate.empty() ? 1 : 1 + std::exp(-gate[t][0]));
}

}  // namespace

void Experts::check(const DecoderValue& model, const nn::MoeConfig& moe) {
  constexpr int64_t kMaxExperts = 1 << 12;
  check_size(moe.experts, kMaxExperts, "num-experts");
  MG_CHECK(moe.choices > 0 && moe.choices <= moe.experts,
           "--moe-router-topk is {}; it must lie in [1, {}], the number of experts", moe.choices,
           moe.experts);
  const kernels::RouterForm& r = moe.router;
  check_number(r.scale, r.scale > 0, "moe-router-topk-scaling-factor", "positive");
  MG_CHECK(r.groups > 0 && moe.experts % r.groups == 0,
           "--num-experts {} is not a multiple of --moe-router-num-groups {}; change one of them",
           moe.experts, r.groups);
  const int64_t size = moe.experts / r.groups;
  MG_CHECK(
      r.chosen_groups > 0 && r.chosen_groups <= r.groups && r.chosen_groups * size >= moe.choices,
      "--moe-router-group-topk is {}; of {} groups of {} experts it must lie in [{}, {}], so that "
      "--moe-router-topk {} experts can be chosen",
      r.chosen_groups, r.groups, size, ceil_div(moe.choices, size), r.groups, moe.choices);
  MG_CHECK(r.group_best > 0 && r.group_best <= size,
           "a group of {} experts is scored by its best {}; that number must lie in [1, {}]", size,
           r.group_best, size);
  MG_CHECK(!moe.weights_on_input || moe.choices == 1,
           "--moe-apply-probs-on-input needs --moe-router-topk 1, not {}", moe.choices);
  Dense::check(model, moe.expert, "moe-ffn-hidden-size");
  MG_CHECK(moe.expert.gate_multiplier == 1 && moe.expert.output_multiplier == 1,
           "experts have the multipliers {} and {}, which only MLPs without experts can have",
           moe.expert.gate_multiplier, moe.expert.output_multiplier);
  if (moe.latent != 0) check_size(moe.latent, kMaxHidden, "moe-latent-size");
  if (moe.shared_ffn != 0)
    check_size(moe.shared_ffn, kMaxWidth, "moe-shared-expert-intermediate-size");
  MG_CHECK(moe.shared_ffn != 0 || !moe.shared_gate,
           "--moe-shared-expert-gate needs --moe-shared-expert-intermediate-size");
}

int64_t Experts::parameters(const nn::MoeConfig& moe, const nn::NormConfig& norm, int64_t h) {
  const int64_t l = moe.latent;
  int64_t size = moe.experts * (h + Dense::parameters(moe.expert, norm, width_of(moe, h))) +
                 (moe.router_bias ? moe.experts : 0);
  if (l > 0) size += 2 * h * l + (moe.expert.bias ? h + l : 0);
  if (moe.shared_ffn > 0)
    size += Dense::parameters(moe.shared(), norm, h) + (moe.shared_gate ? h : 0);
  return size;
}

double Experts::forward_flops(const nn::MoeConfig& moe, int64_t hidden, int64_t length) {
  const auto product = [&](int64_t columns) {
    return 2 * static_cast<double>(length) * static_cast<double>(hidden) *
           static_cast<double>(columns);
  };
  return product(moe.experts + (moe.shared_gate ? 1 : 0)) + 2 * product(moe.latent) +
         static_cast<double>(moe.choices) *
             Dense::forward_flops(moe.expert, width_of(moe, hidden), length) +
         Dense::forward_flops(moe.shared(), hidden, length);
}

void Experts::add_facts(const nn::MoeConfig& moe, ModelFacts& facts) {
  if (facts.experts) {
    facts.experts->chosen = std::max(facts.experts->chosen, moe.choices);
    return;
  }
  facts.experts = ExpertFacts{.count = moe.experts,
                              .chosen = moe.choices,
                              .each = Dense::facts(moe.expert),
                              .latent = moe.latent,
                              .shared_width = moe.shared_ffn,
                              .shared_gate = moe.shared_gate};
}

std::unique_ptr<Sublayer> Experts::build(nn::Builder& builder, const std::string& name,
                                         const nn::MoeConfig& moe, const LayerPlace& place) {
  return std::make_unique<MoeSublayer>(builder, name, place.index, place.model.hidden_size, moe,
                                       place.model.router, matrix_init(place.model),
                                       output_init(place.model), place.seed);
}

PlainRows Experts::plain(const PlainParts& parts, const PlainRows& x, const std::string& name,
                         const nn::MoeConfig& moe, const nn::NormConfig& norm) {
  const int64_t hidden = parts.model().hidden_size, width = moe.latent > 0 ? moe.latent : hidden,
                count = moe.experts, ffn = moe.expert.ffn, inner = moe.expert.gated ? 2 * ffn : ffn;
  const PlainRow router = parts.tensor(name + ".router.weight", {count, hidden}),
                 router_bias =
                     moe.router_bias ? parts.tensor(name + ".router.bias", {count}) : PlainRow(),
                 correction = moe.correction_bias
                                  ? parts.tensor(name + ".router.correction", {count})
                                  : PlainRow(),
                 up = parts.tensor(name + ".experts.up.weight", {count, inner, width}),
                 down = parts.tensor(name + ".experts.down.weight", {count, width, ffn});
  const bool bias = moe.expert.bias;
  const PlainRow up_bias =
                     bias ? parts.tensor(name + ".experts.up.bias", {count, inner}) : PlainRow(),
                 down_bias =
                     bias ? parts.tensor(name + ".experts.down.bias", {count, width}) : PlainRow();
  const PlainRows seen = moe.latent > 0 ? parts.linear(x, name + ".latent_in", width, bias) : x;
  PlainRows y;
  for (size_t t = 0; t < x.size(); ++t) {
    const PlainRow logits = product(router, router_bias, 0, static_cast<size_t>(count), x[t]);
    PlainRow sum(static_cast<size_t>(width));
    for (const Choice& choice : chosen(logits, correction, moe)) {
      PlainRow in = seen[t];
      if (moe.weights_on_input)
        for (double& element : in) element *= choice.weight;
      const PlainRow a = Dense::plain_activated(
          product(up, up_bias, choice.expert, static_cast<size_t>(inner), in), moe.expert);
      const PlainRow out = product(down, down_bias, choice.expert, sum.size(), a);
      for (size_t h = 0; h < sum.size(); ++h)
        sum[h] += out[h] * (moe.weights_on_input ? 1 : choice.weight);
    }
    y.push_back(std::move(sum));
  }
  if (moe.latent > 0) y = parts.linear(y, name + ".latent_out", hidden, bias);
  if (moe.shared_ffn > 0) add_shared(parts, y, x, name, moe, norm);
  return y;
}

}  // namespace megatron::models
