#include "models/decoder/definition_parts.h"
#include "models/decoder/mixers/all.h"

namespace megatron::models {
namespace {

int64_t count(const nn::MlpConfig& mlp, int64_t width) {
  const int64_t up = mlp.gated ? 2 * mlp.ffn : mlp.ffn;
  return width * up + mlp.ffn * width + (mlp.bias ? up + width : 0);
}

int64_t count(const nn::MoeConfig& moe, int64_t h) {
  const int64_t l = moe.latent;
  int64_t size =
      moe.experts * (h + count(moe.expert, l > 0 ? l : h)) + (moe.router_bias ? moe.experts : 0);
  if (l > 0) size += 2 * h * l + (moe.expert.bias ? h + l : 0);
  if (moe.shared_ffn > 0) size += count(moe.shared(), h) + (moe.shared_gate ? h : 0);
  return size;
}

int64_t count(const LayerValue& layer, int64_t h) {
  int64_t size = 0, branches = 0;
  size += visit_mixer(layer.mixer, [&](auto kind, const auto& config) {
    return decltype(kind)::parameters(config, layer.norm, h);
  });
  if (const auto* mlp = layer.mlp()) size += count(*mlp, h);
  if (const auto* moe = layer.moe()) size += count(*moe, h);
  if (std::holds_alternative<LinearConfig>(layer.feed_forward)) size += h * h;
  for (const bool none : {std::holds_alternative<NoOp>(layer.mixer),
                          std::holds_alternative<NoOp>(layer.feed_forward)})
    if (!none) ++branches;
  int64_t norms = branches * ((layer.norm_before ? 1 : 0) + (layer.norm_after ? 1 : 0));
  if (layer.order == LayerValue::Order::parallel_one_norm && branches == 2) norms = 1;
  return size + norms * layer.norm.parameters(h);
}

int64_t parameter_count(const DecoderValue& v) {
  const int64_t h = v.hidden_size;
  int64_t size = v.vocab_size * h + v.final_norm.parameters(h) +
                 (v.learned_positions ? v.max_position_embeddings * h : 0);
  if (v.score_labels > 0) {
    size += v.score_labels * h;
  } else if (v.untied) {
    size += v.vocab_size * h;
  }
  for (const LayerValue& layer : v.layers) size += count(layer, h);
  if (v.prediction.depths > 0)
    size += v.prediction.depths *
            (count(v.prediction.layer, h) + 2 * h * h + 3 * v.final_norm.parameters(h));
  return size;
}

ScoreActivation activation_of(const DecoderValue& v) {
  if (v.score_labels > 1) return ScoreActivation::softmax;
  const bool number = v.score_labels == 0 || v.score_problem == ScoreProblem::by_labels;
  return number ? ScoreActivation::none : ScoreActivation::sigmoid;
}

FeedForwardFacts feed_forward_facts(const nn::MlpConfig& mlp) {
  return {.width = mlp.ffn, .activation = mlp.activation, .gated = mlp.gated, .bias = mlp.bias};
}

ExpertFacts expert_facts(const nn::MoeConfig& moe, const DecoderValue& v) {
  ExpertFacts facts{.count = moe.experts,
                    .chosen = moe.choices,
                    .each = feed_forward_facts(moe.expert),
                    .latent = moe.latent,
                    .shared_width = moe.shared_ffn,
                    .shared_gate = moe.shared_gate};
  for (const LayerValue& layer : v.layers) facts.layers.push_back(layer.moe() != nullptr);
  return facts;
}

}  // namespace

ModelFacts facts_of(const DecoderValue& v, std::string_view family) {
  ModelFacts facts{
      .family = family,
      .num_layers = v.num_layers(),
      .hidden_size = v.hidden_size,
      .vocab_size = v.vocab_size,
      .max_position_embeddings = v.positions(),
      .context_length = v.context_length(),
      .positions = v.learned_positions ? Positions::learned : Positions::none,
      .parameters = parameter_count(v),
      .rms_norm = v.layers.at(0).norm.kind == nn::Normalization::rms_norm,
      .tied = !v.untied,
      .prediction = {.depths = v.prediction.depths,
                     .left_out = v.prediction.left_out,
                     .loss_scale = v.prediction.loss_scale},
      .score_labels = v.score_labels,
      .score_padding = v.score_pad_token,
      .label_names = v.score_label_names,
      .score_activation = activation_of(v),
      .hidden_dropout = v.hidden_dropout,
      .attention_dropout = v.attention_dropout,
      .init_std = v.init_method_std,
  };
  for (const LayerValue& layer : v.layers) {
    visit_mixer(layer.mixer, [&](auto kind, const auto& config) {
      if (facts.attention || !decltype(kind)::facts(config)) return;
      facts.attention = decltype(kind)::facts(config);
      if (decltype(kind)::rotary(config)) facts.positions = Positions::rotary;
    });
  }
  if (const nn::MlpConfig* mlp = v.first_mlp()) facts.feed_forward = feed_forward_facts(*mlp);
  if (const nn::MoeConfig* moe = v.first_moe()) facts.experts = expert_facts(*moe, v);
  return facts;
}

}  // namespace megatron::models
