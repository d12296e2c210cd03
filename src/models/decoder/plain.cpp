#include <algorithm>
#include <cmath>

#include "models/decoder/definition_parts.h"
#include "models/decoder/mixers/all.h"

namespace megatron::models {
namespace {

using Row = PlainRow;
using Rows = PlainRows;

class PlainDecoder : private PlainParts {
 public:
  PlainDecoder(const DecoderValue& value, const FamilyTensors& map, const PlainTensors& weights)
      : PlainParts(value, map, weights), v_(value) {}

  Row losses(std::span<const int32_t> tokens, std::span<const int32_t> labels) const {
    return losses_of(trunk(tokens), labels);
  }

  // Row k - 1: the losses of depth k, for all tokens but the last k.
  Rows prediction_losses(std::span<const int32_t> tokens, std::span<const int32_t> labels) const {
    Rows x = trunk(tokens), losses;
    for (int64_t depth = 1; depth <= v_.prediction.depths; ++depth) {
      const auto shift = std::min(static_cast<size_t>(depth), tokens.size());
      x = shift == tokens.size() ? Rows() : predicted(x, tokens.subspan(shift), depth);
      losses.push_back(losses_of(x, labels.subspan(shift)));
    }
    return losses;
  }

 private:
  Rows trunk(std::span<const int32_t> tokens) const {
    Rows x = embedded(tokens);
    for (int64_t i = 0; i < v_.num_layers(); ++i) add_layer(x, i);
    return normed(x, "final_norm", v_.final_norm);
  }

  Row losses_of(const Rows& x, std::span<const int32_t> labels) const {
    const bool scores = v_.score_labels > 0;
    const Row head = tensor(scores      ? "score.weight"
                            : v_.untied ? "output.weight"
                                        : "embedding.weight",
                            {scores ? v_.score_labels : v_.vocab_size, v_.hidden_size});
    Row losses;
    for (size_t t = 0; t < x.size(); ++t) losses.push_back(cross_entropy(x[t], head, labels[t]));
    return losses;
  }

  // Output of a depth from that of the one before, of which the last token has no next one.
  Rows predicted(const Rows& before, std::span<const int32_t> next_tokens, int64_t depth) const {
    const int64_t index = v_.num_layers() + depth - 1;
    const std::string name = "layers." + std::to_string(index) + ".";
    const Rows embedding = normed(embedded(next_tokens), name + "embedding_norm", v_.final_norm);
    const Rows hidden = normed(before, name + "hidden_norm", v_.final_norm);
    Rows joined;
    for (size_t t = 0; t < next_tokens.size(); ++t) {
      joined.push_back(embedding[t]);
      joined.back().insert(joined.back().end(), hidden[t].begin(), hidden[t].end());
    }
    Rows x = linear(joined, name + "projection", v_.hidden_size, false);
    add_layer(x, index);
    return normed(x, name + "final_norm", v_.final_norm);
  }

  Rows embedded(std::span<const int32_t> tokens) const {
    const auto hidden = static_cast<size_t>(v_.hidden_size);
    const Row table = tensor("embedding.weight", {v_.vocab_size, v_.hidden_size});
    const Row positions =
        v_.learned_positions
            ? tensor("position_embedding.weight", {v_.max_position_embeddings, v_.hidden_size})
            : Row();
    Rows x;
    for (size_t t = 0; t < tokens.size(); ++t) {
      Row row(hidden);
      for (size_t h = 0; h < hidden; ++h) {
        row[h] = v_.embedding_scale * table[static_cast<size_t>(tokens[t]) * hidden + h];
        if (!positions.empty()) row[h] += positions[t * hidden + h];
      }
      x.push_back(std::move(row));
    }
    return x;
  }

  static void add(Rows& x, const Rows& y, double factor) {
    for (size_t t = 0; t < x.size(); ++t)
      for (size_t h = 0; h < x[t].size(); ++h) x[t][h] += factor * y[t][h];
  }

  void add_layer(Rows& x, int64_t index) const {
    const LayerValue& layer = v_.layer(index);
    const std::string name = "layers." + std::to_string(index) + ".";
    const bool mixes = !std::holds_alternative<NoOp>(layer.mixer),
               feeds = !std::holds_alternative<NoOp>(layer.feed_forward);
    const auto before = [&](const Rows& rows, const std::string& which) {
      return layer.norm_before ? normed(rows, name + which + "_norm", layer.norm) : rows;
    };
    const auto after = [&](Rows rows, const std::string& which) {
      return layer.norm_after ? normed(rows, name + which + "_post_norm", layer.norm) : rows;
    };
    if (layer.order != LayerValue::Order::sequential && mixes && feeds) {
      const bool one = layer.order == LayerValue::Order::parallel_one_norm;
      const Rows mixed = this->mixed(before(x, "attention"), name + "attention", layer);
      const Rows fed = feed(before(x, one ? "attention" : "mlp"), name + "mlp", layer);
      add(x, mixed, layer.residual_multiplier);
      add(x, fed, layer.residual_multiplier);
      return;
    }
    if (mixes) {
      const Rows mixed = this->mixed(before(x, "attention"), name + "attention", layer);
      add(x, after(mixed, "attention"), layer.residual_multiplier);
    }
    if (feeds) {
      const Rows fed = feed(before(x, "mlp"), name + "mlp", layer);
      add(x, after(fed, "mlp"), layer.residual_multiplier);
    }
  }

  Rows mixed(const Rows& x, const std::string& name, const LayerValue& layer) const {
    return visit_mixer(layer.mixer, [&](auto kind, const auto& config) {
      return decltype(kind)::plain(*this, x, name, config, layer.norm);
    });
  }

  static double activated(kernels::Activation function, double x) {
    using kernels::Activation;
    switch (function) {
      case Activation::gelu_tanh:
        return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
      case Activation::gelu_erf: return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
      case Activation::silu: return x / (1 + std::exp(-x));
      case Activation::relu: return std::max(x, 0.0);
      case Activation::squared_relu: return std::max(x, 0.0) * std::max(x, 0.0);
      case Activation::quick_gelu: return x / (1 + std::exp(-1.702 * x));
    }
    return NAN;
  }

  Rows feed(const Rows& x, const std::string& name, const LayerValue& layer) const {
    if (const nn::MoeConfig* moe = layer.moe()) return experts(x, name, *moe);
    const nn::MlpConfig* mlp = layer.mlp();
    if (mlp == nullptr) return linear(x, name + ".linear", v_.hidden_size, false);
    return feed_forward(x, name, *mlp);
  }

  Rows feed_forward(const Rows& x, const std::string& name, const nn::MlpConfig& mlp) const {
    Rows inner;
    for (const Row& row : linear(x, name + ".up", mlp.gated ? 2 * mlp.ffn : mlp.ffn, mlp.bias))
      inner.push_back(activated(row, mlp));
    return linear(inner, name + ".down", v_.hidden_size, mlp.bias);
  }

  static Row activated(const Row& row, const nn::MlpConfig& mlp) {
    const auto width = static_cast<size_t>(mlp.ffn);
    Row y(width);
    for (size_t f = 0; f < width; ++f) {
      double gate = row[f], up = mlp.gated ? row[width + f] : 1;
      if (mlp.gated && mlp.clamp > 0) {
        gate = std::min(gate, mlp.clamp);
        up = std::clamp(up, -mlp.clamp, mlp.clamp);
      }
      y[f] = activated(mlp.activation, gate) * (up + mlp.up_offset);
    }
    return y;
  }

  // Rows of expert e of [E,out,in] and [E,out], times x.
  static Row product(const Row& matrices, const Row& biases, size_t e, size_t out, const Row& x) {
    Row y(out);
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

  Rows experts(const Rows& x, const std::string& name, const nn::MoeConfig& moe) const {
    const int64_t hidden = v_.hidden_size, width = moe.latent > 0 ? moe.latent : hidden,
                  count = moe.experts, ffn = moe.expert.ffn,
                  inner = moe.expert.gated ? 2 * ffn : ffn;
    const Row router = tensor(name + ".router.weight", {count, hidden}),
              router_bias = moe.router_bias ? tensor(name + ".router.bias", {count}) : Row(),
              correction =
                  moe.correction_bias ? tensor(name + ".router.correction", {count}) : Row(),
              up = tensor(name + ".experts.up.weight", {count, inner, width}),
              down = tensor(name + ".experts.down.weight", {count, width, ffn});
    const bool bias = moe.expert.bias;
    const Row up_bias = bias ? tensor(name + ".experts.up.bias", {count, inner}) : Row(),
              down_bias = bias ? tensor(name + ".experts.down.bias", {count, width}) : Row();
    const Rows seen = moe.latent > 0 ? linear(x, name + ".latent_in", width, bias) : x;
    Rows y;
    for (size_t t = 0; t < x.size(); ++t) {
      const Row logits = product(router, router_bias, 0, static_cast<size_t>(count), x[t]);
      Row sum(static_cast<size_t>(width));
      for (const Choice& choice : chosen(logits, correction, moe)) {
        Row in = seen[t];
        if (moe.weights_on_input)
          for (double& element : in) element *= choice.weight;
        const Row a = activated(product(up, up_bias, choice.expert, static_cast<size_t>(inner), in),
                                moe.expert);
        const Row out = product(down, down_bias, choice.expert, sum.size(), a);
        for (size_t h = 0; h < sum.size(); ++h)
          sum[h] += out[h] * (moe.weights_on_input ? 1 : choice.weight);
      }
      y.push_back(std::move(sum));
    }
    if (moe.latent > 0) y = linear(y, name + ".latent_out", hidden, bias);
    if (moe.shared_ffn > 0) add_shared(y, x, name, moe);
    return y;
  }

  void add_shared(Rows& y, const Rows& x, const std::string& name, const nn::MoeConfig& moe) const {
    const Rows shared = feed_forward(x, name + ".shared", moe.shared());
    const Rows gate = moe.shared_gate ? linear(x, name + ".shared_gate", 1, false) : Rows();
    for (size_t t = 0; t < y.size(); ++t)
      for (size_t h = 0; h < y[t].size(); ++h)
        y[t][h] += shared[t][h] / (gate.empty() ? 1 : 1 + std::exp(-gate[t][0]));
  }

  static std::vector<Choice> chosen(const Row& logits, const Row& correction,
                                    const nn::MoeConfig& moe) {
    const kernels::RouterForm& r = moe.router;
    Row scores;
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
    Row values = r.score == kernels::RouterScore::softmax && !r.softmax_first ? logits : scores;
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

  static void leave_best_groups(Row& values, const kernels::RouterForm& r) {
    const size_t size = values.size() / static_cast<size_t>(r.groups);
    std::vector<std::pair<double, size_t>> worth;
    for (size_t g = 0; g < static_cast<size_t>(r.groups); ++g) {
      Row group(values.begin() + static_cast<ptrdiff_t>(g * size),
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

  double cross_entropy(const Row& x, const Row& head, int32_t label) const {
    double sum = 0, of_label = 0;
    for (size_t v = 0; v < head.size() / x.size(); ++v) {
      double logit = 0;
      for (size_t h = 0; h < x.size(); ++h)
        logit += v_.logits_scale * x[h] * head[v * x.size() + h];
      if (v_.logits_soft_cap > 0)
        logit = v_.logits_soft_cap * std::tanh(logit / v_.logits_soft_cap);
      sum += std::exp(logit);
      if (v == static_cast<size_t>(label)) of_label = logit;
    }
    return std::log(sum) - of_label;
  }

  const DecoderValue& v_;
};

}  // namespace

std::vector<double> plain_losses(const DecoderValue& value, const FamilyTensors& map,
                                 const PlainTensors& weights, std::span<const int32_t> tokens,
                                 std::span<const int32_t> labels) {
  return PlainDecoder(value, map, weights).losses(tokens, labels);
}

std::vector<std::vector<double>> plain_prediction_losses(const DecoderValue& value,
                                                         const FamilyTensors& map,
                                                         const PlainTensors& weights,
                                                         std::span<const int32_t> tokens,
                                                         std::span<const int32_t> labels) {
  return PlainDecoder(value, map, weights).prediction_losses(tokens, labels);
}

}  // namespace megatron::models
