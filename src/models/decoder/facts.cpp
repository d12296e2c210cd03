#include <set>

#include "models/decoder/definition_parts.h"
#include "models/decoder/feed_forwards/all.h"
#include "models/decoder/mixers/all.h"

namespace megatron::models {
namespace {

int64_t count(const LayerValue& layer, int64_t h) {
  const auto of_part = [&](auto kind, const auto& config) {
    return decltype(kind)::parameters(config, layer.norm, h);
  };
  int64_t size = visit_part(layer.mixer, of_part) + visit_part(layer.feed_forward, of_part);
  if (layer.cross) size += of_part(LayerPart<nn::AttentionConfig>{}, *layer.cross);
  int64_t branches = layer.cross ? 1 : 0;
  for (const bool none : {std::holds_alternative<NoOp>(layer.mixer),
                          std::holds_alternative<NoOp>(layer.feed_forward)})
    if (!none) ++branches;
  int64_t norms =
      branches * ((layer.norm_before || layer.norm_of_sum ? 1 : 0) + (layer.norm_after ? 1 : 0));
  if (!layer.mixer_norm && !std::holds_alternative<NoOp>(layer.mixer)) --norms;
  if (layer.order == LayerValue::Order::parallel_one_norm && branches == 2) norms = 1;
  return size + norms * layer.norm.parameters(h);
}

int64_t parameter_count(const DecoderValue& v) {
  const int64_t h = v.hidden_size;
  int64_t size = v.vocab_size * h + (v.has_final_norm ? v.final_norm.parameters(h) : 0) +
                 (v.learned_positions ? (v.max_position_embeddings + v.position_offset) * h : 0) +
                 v.token_types * h;
  if (v.embedding_norm) size += v.embedding_norm->parameters(h);
  if (v.encoder_layers > 0) size += v.final_norm.parameters(h);
  for (const auto* transform : {&v.head_transform, &v.score_transform})
    if (*transform && !v.headless) size += (*transform)->parameters(h);
  if (v.output_bias) size += v.vocab_size;
  if (v.pair_head)
    size += HeadTransform{.kind = HeadTransform::Kind::pooler}.parameters(h) + 2 * h + 2;
  if (v.score_labels > 0) {
    size += v.score_labels * (v.score_bias ? h + 1 : h);
  } else if (v.untied && !v.headless) {
    size += v.vocab_size * h;
  }
  std::set<int64_t> blocks;  // those counted
  for (const LayerValue& layer : v.layers) {
    size += count(layer, h);
    const auto* shared = std::get_if<SharedBlockConfig>(&layer.mixer);
    if (shared != nullptr && !blocks.insert(shared->block).second)
      size -= LayerPart<SharedBlockConfig>::shared_parameters(*shared, layer.norm, h);
  }
  if (v.prediction.depths > 0)
    size += v.prediction.depths *
            (count(v.prediction.layer, h) + 2 * h * h + 3 * v.final_norm.parameters(h));
  return size;
}

// A model's blocks one after another; empty if one of them has no letter.
std::string letters_of(const DecoderValue& v) {
  std::string letters;
  for (const LayerValue& layer : v.layers) {
    if (std::holds_alternative<nn::StateSpaceConfig>(layer.mixer)) letters += 'M';
    else if (std::holds_alternative<nn::AttentionConfig>(layer.mixer)) letters += '*';
    else if (std::holds_alternative<nn::LatentAttentionConfig>(layer.mixer)) letters += '+';
    else if (!std::holds_alternative<NoOp>(layer.mixer)) return {};
    if (layer.mlp() != nullptr) letters += '-';
    else if (layer.moe() != nullptr) letters += 'E';
    else if (!std::holds_alternative<NoOp>(layer.feed_forward)) return {};
  }
  return letters;
}

ScoreActivation activation_of(const DecoderValue& v) {
  if (v.score_problem == ScoreProblem::multi_label) return ScoreActivation::sigmoid;
  if (v.score_labels > 1) return ScoreActivation::softmax;
  const bool number = v.score_labels == 0 || v.score_problem == ScoreProblem::by_labels;
  return number ? ScoreActivation::none : ScoreActivation::sigmoid;
}

}  // namespace

ModelFacts facts_of(const DecoderValue& v, std::string_view family) {
  ModelFacts facts{
      .family = family,
      .num_layers = v.num_layers(),
      .encoder_layers = v.encoder_layers,
      .start_token = v.start_token,
      .hidden_size = v.hidden_size,
      .vocab_size = v.vocab_size,
      .max_position_embeddings = v.positions(),
      .context_length = v.context_length(),
      .positions = v.learned_positions ? Positions::learned : Positions::none,
      .position_offset = v.position_offset,
      .token_types = v.token_types,
      .left_out_token = v.left_out_token,
      .parameters = parameter_count(v),
      .rms_norm = v.layers.at(0).norm.kind == nn::Normalization::rms_norm,
      .tied = !v.untied,
      .prediction = {.depths = v.prediction.depths,
                     .left_out = v.prediction.left_out,
                     .loss_scale = v.prediction.loss_scale,
                     .detached = v.prediction.detached},
      .score_labels = v.score_labels,
      .scored = v.scored,
      .multi_label = v.score_problem == ScoreProblem::multi_label,
      .predicts_masked = v.predicts_masked,
      .pair_head = v.pair_head,
      .headless = v.headless,
      .score_padding = v.score_pad_token,
      .label_names = v.score_label_names,
      .score_activation = activation_of(v),
      .hidden_dropout = v.hidden_dropout,
      .attention_dropout = v.attention_dropout,
      .init_std = v.init_method_std,
  };
  const auto add_facts = [&](auto kind, const auto& config) {
    decltype(kind)::add_facts(config, facts);
  };
  std::set<int64_t> blocks;
  for (const LayerValue& layer : v.layers) {
    visit_part(layer.mixer, add_facts);
    visit_part(layer.feed_forward, add_facts);
    const auto* shared = std::get_if<SharedBlockConfig>(&layer.mixer);
    if (shared == nullptr) continue;
    blocks.insert(shared->block);
    ++facts.shared_uses;
  }
  if (v.prediction.depths > 0) {
    ModelFacts of_depths{.reaches = facts.reaches};
    visit_part(v.prediction.layer.mixer, [&](auto kind, const auto& config) {
      decltype(kind)::add_facts(config, of_depths);
    });
    facts.reaches = of_depths.reaches;
  }
  facts.shared_blocks = std::ssize(blocks);
  if (facts.state_space) facts.hybrid_pattern = letters_of(v);
  facts.two_sided = facts.two_sided && v.encoder_layers == 0;
  if (facts.experts)
    for (const LayerValue& layer : v.layers)
      facts.experts->layers.push_back(layer.moe() != nullptr);
  return facts;
}

}  // namespace megatron::models
