#include <algorithm>
#include <cmath>

#include "models/decoder/definition_parts.h"
#include "models/decoder/feed_forwards/all.h"
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
    Rows x = embedded(tokens);
    for (int64_t i = 0; i < v_.num_layers(); ++i) add_layer(x, i);
    x = normed(x, "final_norm", v_.final_norm);
    const bool scores = v_.score_labels > 0;
    const Row head = tensor(scores      ? "score.weight"
                            : v_.untied ? "output.weight"
                                        : "embedding.weight",
                            {scores ? v_.score_labels : v_.vocab_size, v_.hidden_size});
    Row losses;
    for (size_t t = 0; t < x.size(); ++t) losses.push_back(cross_entropy(x[t], head, labels[t]));
    return losses;
  }

 private:
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
    const LayerValue& layer = v_.layers[static_cast<size_t>(index)];
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
      const Rows mixed =
          result(layer.mixer, before(x, "attention"), name + "attention", layer.norm);
      const Rows fed = result(layer.feed_forward, before(x, one ? "attention" : "mlp"),
                              name + "mlp", layer.norm);
      add(x, mixed, layer.residual_multiplier);
      add(x, fed, layer.residual_multiplier);
      return;
    }
    if (mixes) {
      const Rows mixed =
          result(layer.mixer, before(x, "attention"), name + "attention", layer.norm);
      add(x, after(mixed, "attention"), layer.residual_multiplier);
    }
    if (feeds) {
      const Rows fed = result(layer.feed_forward, before(x, "mlp"), name + "mlp", layer.norm);
      add(x, after(fed, "mlp"), layer.residual_multiplier);
    }
  }

  template <class Value>
  Rows result(const Value& part, const Rows& x, const std::string& name,
              const nn::NormConfig& norm) const {
    return visit_part(part, [&](auto kind, const auto& config) {
      return decltype(kind)::plain(*this, x, name, config, norm);
    });
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

}  // namespace megatron::models
