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

  Row losses(const PlainText& text, std::span<const int32_t> labels) {
    const Rows encoded = v_.encoder_layers > 0 ? this->encoded(text.encoder) : Rows();
    return losses_of(trunk(text.tokens, encoded, text.types), labels);
  }

  // From the first token alone.
  double pair_loss(const PlainText& text, int32_t label) {
    const Rows first = {trunk(text.tokens, {}, text.types).at(0)};
    const Row pooled = transformed(first, "pooler", {.kind = HeadTransform::Kind::pooler}).at(0);
    return cross_entropy(pooled, tensor("pair.weight", {2, v_.hidden_size}),
                         tensor("pair_bias", {2}), label);
  }

  std::vector<PlainPrediction> predictions(std::span<const int32_t> tokens,
                                           std::span<const int32_t> labels) {
    Rows x = trunk(tokens);
    std::vector<PlainPrediction> of_depths;
    for (int64_t depth = 1; depth <= v_.prediction.depths; ++depth) {
      const auto shift = std::min(static_cast<size_t>(depth), tokens.size());
      x = shift == tokens.size() ? Rows() : predicted(x, tokens.subspan(shift), depth);
      PlainPrediction& of = of_depths.emplace_back();
      of.losses = losses_of(x, labels.subspan(shift), &of.hits);
    }
    return of_depths;
  }

 private:
  Rows encoded(std::span<const int32_t> tokens) const {
    Rows x = embedded(tokens);
    for (int64_t i = 0; i < v_.encoder_layers; ++i) add_layer(x, i);
    return normed(x, "encoder_norm", v_.final_norm);
  }

  // encoded: the encoder's output, if there is one.
  Rows trunk(std::span<const int32_t> tokens, const Rows& encoded = {},
             std::span<const int32_t> token_types = {}) {
    Rows x = embedding_ = embedded(tokens, token_types);
    for (int64_t i = v_.encoder_layers; i < v_.num_layers(); ++i) add_layer(x, i, encoded);
    return v_.has_final_norm ? normed(x, "final_norm", v_.final_norm) : x;
  }

  // norm(activation(dense x)), or tanh(dense x).
  Rows transformed(const Rows& x, const std::string& name, const HeadTransform& transform) const {
    Rows y = linear(x, name + ".dense", v_.hidden_size, transform.bias);
    const bool pooler = transform.kind == HeadTransform::Kind::pooler;
    for (Row& row : y) {
      if (pooler)
        for (double& value : row) value = std::tanh(value);
      else
        row = LayerPart<nn::MlpConfig>::plain_activated(
            row, {.ffn = v_.hidden_size, .activation = transform.activation});
    }
    return transform.kind == HeadTransform::Kind::dense_norm
               ? normed(y, name + ".norm", transform.norm)
               : y;
  }

  // hits: as in PlainPrediction, or null.
  Row losses_of(const Rows& trunk, std::span<const int32_t> labels, Row* hits = nullptr) const {
    const bool scores = v_.score_labels > 0;
    const std::optional<HeadTransform>& transform = scores ? v_.score_transform : v_.head_transform;
    const Rows x =
        transform ? transformed(trunk, scores ? "score_transform" : "head_transform", *transform)
                  : trunk;
    const bool biased = scores ? v_.score_bias : v_.output_bias;
    const Row bias = biased ? tensor(scores ? "score_bias" : "output_bias",
                                     {scores ? v_.score_labels : v_.vocab_size})
                            : Row();
    const Row head = tensor(scores      ? "score.weight"
                            : v_.untied ? "output.weight"
                                        : "embedding.weight",
                            {scores ? v_.score_labels : v_.vocab_size, v_.hidden_size});
    Row losses;
    for (size_t t = 0; t < x.size(); ++t) {
      bool first = false;
      losses.push_back(cross_entropy(x[t], head, bias, labels[t], &first));
      if (hits != nullptr) hits->push_back(first ? 1 : 0);
    }
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

  Rows embedded(std::span<const int32_t> tokens, std::span<const int32_t> token_types = {}) const {
    const auto hidden = static_cast<size_t>(v_.hidden_size);
    const Row table = tensor("embedding.weight", {v_.vocab_size, v_.hidden_size});
    const Row positions =
        v_.learned_positions
            ? tensor("position_embedding.weight",
                     {v_.position_offset + v_.max_position_embeddings, v_.hidden_size})
            : Row();
    const Row types = v_.token_types > 0
                          ? tensor("token_type_embedding.weight", {v_.token_types, v_.hidden_size})
                          : Row();
    const double masks = static_cast<double>(std::ranges::count(tokens, v_.left_out_token)),
                 all = static_cast<double>(tokens.size());
    Rows x;
    for (size_t t = 0; t < tokens.size(); ++t) {
      Row row(hidden);
      for (size_t h = 0; h < hidden; ++h) {
        row[h] = v_.embedding_scale * table[static_cast<size_t>(tokens[t]) * hidden + h];
        if (v_.left_out_token >= 0)
          row[h] *= tokens[t] == v_.left_out_token ? 0 : 0.88 * all / (all - masks);
        const size_t position = t + static_cast<size_t>(v_.position_offset);
        if (!positions.empty()) row[h] += positions[position * hidden + h];
        const auto type = static_cast<size_t>(token_types.empty() ? 0 : token_types[t]);
        if (!types.empty()) row[h] += types[type * hidden + h];
      }
      x.push_back(std::move(row));
    }
    return v_.embedding_norm ? normed(x, "embedding_norm", *v_.embedding_norm) : x;
  }

  static void add(Rows& x, const Rows& y, double factor) {
    for (size_t t = 0; t < x.size(); ++t)
      for (size_t h = 0; h < x[t].size(); ++h) x[t][h] += factor * y[t][h];
  }

  void add_layer(Rows& x, int64_t index, const Rows& encoded = {}) const {
    const LayerValue& layer = v_.layer(index);
    const std::string name = "layers." + std::to_string(index) + ".";
    const bool mixes = !std::holds_alternative<NoOp>(layer.mixer),
               feeds = !std::holds_alternative<NoOp>(layer.feed_forward);
    const auto before = [&](const Rows& rows, const std::string& which) {
      const bool has = layer.norm_before && (which != "attention" || layer.mixer_norm);
      return has ? normed(rows, name + which + "_norm", layer.norm) : rows;
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
      if (layer.norm_of_sum) x = normed(x, name + "attention_norm", layer.norm);
    }
    if (layer.cross) {
      const Rows seen = LayerPart<nn::AttentionConfig>::plain_cross(
          *this, before(x, "cross_attention"), encoded, name + "cross_attention", *layer.cross);
      add(x, after(seen, "cross_attention"), layer.residual_multiplier);
      if (layer.norm_of_sum) x = normed(x, name + "cross_attention_norm", layer.norm);
    }
    if (feeds) {
      const Rows fed = result(layer.feed_forward, before(x, "mlp"), name + "mlp", layer.norm);
      add(x, after(fed, "mlp"), layer.residual_multiplier);
      if (layer.norm_of_sum) x = normed(x, name + "mlp_norm", layer.norm);
    }
  }

  template <class Value>
  Rows result(const Value& part, const Rows& x, const std::string& name,
              const nn::NormConfig& norm) const {
    return visit_part(part, [&](auto kind, const auto& config) {
      return decltype(kind)::plain(*this, x, name, config, norm);
    });
  }

  // first: set to whether no logit is above the label's.
  double cross_entropy(const Row& x, const Row& head, const Row& bias, int32_t label,
                       bool* first = nullptr) const {
    double sum = 0, of_label = 0, most = -INFINITY;
    for (size_t v = 0; v < head.size() / x.size(); ++v) {
      double logit = bias.empty() ? 0 : bias[v];
      for (size_t h = 0; h < x.size(); ++h)
        logit += v_.logits_scale * x[h] * head[v * x.size() + h];
      if (v_.logits_soft_cap > 0)
        logit = v_.logits_soft_cap * std::tanh(logit / v_.logits_soft_cap);
      sum += std::exp(logit);
      most = std::max(most, logit);
      if (v == static_cast<size_t>(label)) of_label = logit;
    }
    if (first != nullptr) *first = of_label >= most;
    return std::log(sum) - of_label;
  }

  const DecoderValue& v_;
};

}  // namespace

std::vector<double> plain_losses(const DecoderValue& value, const FamilyTensors& map,
                                 const PlainTensors& weights, const PlainText& text,
                                 std::span<const int32_t> labels) {
  return PlainDecoder(value, map, weights).losses(text, labels);
}

double plain_pair_loss(const DecoderValue& value, const FamilyTensors& map,
                       const PlainTensors& weights, const PlainText& text, int32_t label) {
  return PlainDecoder(value, map, weights).pair_loss(text, label);
}

std::vector<PlainPrediction> plain_predictions(const DecoderValue& value, const FamilyTensors& map,
                                               const PlainTensors& weights,
                                               std::span<const int32_t> tokens,
                                               std::span<const int32_t> labels) {
  return PlainDecoder(value, map, weights).predictions(tokens, labels);
}

}  // namespace megatron::models
