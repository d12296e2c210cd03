#include "models/decoder/value.h"

#include <cmath>

#include "base/error.h"
#include "models/decoder/feed_forwards/all.h"
#include "models/decoder/mixers/all.h"
#include "models/decoder/value_checks.h"
#include "models/facts.h"

namespace megatron::models {
namespace {

void check_norm(const nn::NormConfig& norm) {
  check_number(norm.epsilon, norm.epsilon > 0, "norm-epsilon", "positive");
}

void check_layer(const DecoderValue& model, const LayerValue& layer) {
  check_norm(layer.norm);
  check_number(layer.residual_multiplier, layer.residual_multiplier != 0, "residual-multiplier",
               "other than 0");
  const bool sequential = layer.order == LayerValue::Order::sequential;
  MG_CHECK(sequential || (layer.norm_before && !layer.norm_after && !layer.norm_of_sum),
           "parallel attention and MLP must be pre-norm");
  MG_CHECK(!layer.norm_of_sum || (!layer.norm_before && !layer.norm_after),
           "a layer with norms of sums has no other norms");
  MG_CHECK(layer.mixer_norm || (sequential && layer.norm_before),
           "only a sequential pre-norm layer can leave out the norm before its mixer");
  const auto check_part = [&](auto kind, const auto& config) {
    decltype(kind)::check(model, config);
  };
  visit_part(layer.mixer, check_part);
  visit_part(layer.feed_forward, check_part);
  if (layer.cross) {
    MG_CHECK(sequential, "only a sequential layer can have cross attention");
    const nn::AttentionConfig& a = *layer.cross;
    MG_CHECK(
        a == (nn::AttentionConfig{.heads = a.heads,
                                  .kv_heads = a.kv_heads,
                                  .head_size = a.head_size,
                                  .qkv_bias = a.qkv_bias,
                                  .output_bias = a.output_bias,
                                  .scale = a.scale}),
        "cross attention can have heads, a head size, biases and a scale, but no other settings");
    LayerPart<nn::AttentionConfig>::check(model, a);
  }
}

void check_prediction(const DecoderValue& model) {
  constexpr int64_t kMaxDepths = 16;
  const PredictionValue& p = model.prediction;
  MG_CHECK(p.depths >= 0 && p.depths <= kMaxDepths,
           "--mtp-num-layers is {}; it must lie in [0, {}]", p.depths, kMaxDepths);
  if (p.depths == 0) return;
  check_layer(model, p.layer);
  check_number(p.loss_scale, p.loss_scale > 0, "mtp-loss-scaling-factor",
               "above 0 (--mtp-num-layers 0: no depths)");
  MG_CHECK(!model.learned_positions,
           "--mtp-num-layers {} needs --position-embedding-type rope, yarn or none: learned "
           "positions are added to embeddings, which each depth reads at other places",
           p.depths);
  MG_CHECK(model.score_labels == 0,
           "--mtp-num-layers {} is for language models, and this one scores texts; use 0",
           p.depths);
}

// Layers that share relative positions have those of the layer before, up to the first layer of the
// encoder or decoder, whose table they read.
void check_shared_positions(const DecoderValue& v) {
  for (int64_t i = 0; i < v.num_layers(); ++i) {
    const nn::AttentionConfig* a = v.layer(i).attention();
    if (a == nullptr || !a->relative.shared) continue;
    MG_CHECK(i != 0 && i != v.encoder_layers,
             "layer {} shares the relative positions of an earlier layer, but it is the first of "
             "its stack",
             i);
    const nn::AttentionConfig* before = v.layer(i - 1).attention();
    nn::RelativeBuckets own = a->relative;
    if (before != nullptr) own.shared = before->relative.shared;
    const bool first = i - 1 == 0 || i - 1 == v.encoder_layers;
    MG_CHECK(before != nullptr && own == before->relative && a->heads == before->heads &&
                 a->two_sided == before->two_sided && (first || before->relative.shared),
             "layer {} shares the relative positions of the first layer of its stack, so all "
             "layers between them must share them, with as many buckets and heads and the same "
             "distances",
             i);
  }
  const nn::AttentionConfig* a = v.prediction.layer.attention();
  MG_CHECK(v.prediction.depths == 0 || a == nullptr || !a->relative.shared,
           "--mtp-num-layers {}: its layer cannot share the relative positions of others",
           v.prediction.depths);
}

// Which layers are the encoder's, and what does not go with one.
void check_encoder_layers(const DecoderValue& v) {
  MG_CHECK(v.encoder_layers >= 0 && v.encoder_layers < v.num_layers(),
           "the encoder has {} of {} layers; the number must lie in [0, {}]: the decoder needs one",
           v.encoder_layers, v.num_layers(), v.num_layers() - 1);
  for (int64_t i = 0; i < v.num_layers(); ++i) {
    const LayerValue& layer = v.layer(i);
    const bool decodes = v.encoder_layers > 0 && i >= v.encoder_layers;
    MG_CHECK(
        layer.cross.has_value() == decodes,
        "layer {} {} cross attention; all layers of an encoder-decoder's decoder must have it, "
        "and no other layers can",
        i, decodes ? "has no" : "has");
    const nn::AttentionConfig* a = layer.attention();
    MG_CHECK(v.encoder_layers == 0 || (a != nullptr && a->two_sided == !decodes),
             "layer {} of an encoder-decoder must have {} attention", i,
             decodes ? "causal" : "bidirectional");
  }
  if (v.encoder_layers == 0) return;
  MG_CHECK(v.prediction.depths == 0 && v.score_labels == 0 && !v.predicts_masked && !v.pair_head &&
               !v.head_transform && !v.embedding_norm && v.left_out_token < 0,
           "an encoder-decoder predicts the next token: it has no heads and tables of an encoder, "
           "no scores and no --mtp-num-layers");
  MG_CHECK(v.has_final_norm, "an encoder-decoder needs a final norm");
  MG_CHECK(v.start_token >= -1 && v.start_token < v.vocab_size,
           "the decoder's start token (decoder_start_token_id) is {}; the vocabulary has {} tokens",
           v.start_token, v.vocab_size);
}

// Parts around the layers of an encoder.
void check_encoder(const DecoderValue& v) {
  MG_CHECK(v.position_offset >= 0 && v.position_offset <= kMaxPositions,
           "the table of positions begins {} rows before a text's; the number must lie in [0, {}]",
           v.position_offset, kMaxPositions);
  MG_CHECK(v.position_offset == 0 || v.learned_positions,
           "only a table of learned positions can begin before a text's");
  MG_CHECK(v.token_types >= 0 && v.token_types <= kMaxVocabulary,
           "the model has {} token types; the number must lie in [0, {}]", v.token_types,
           kMaxVocabulary);
  MG_CHECK(v.left_out_token >= -1 && v.left_out_token < v.vocab_size,
           "the token whose embedding is left out is {}; the vocabulary has {} tokens",
           v.left_out_token, v.vocab_size);
  if (v.embedding_norm) check_norm(*v.embedding_norm);
  for (const auto* transform : {&v.head_transform, &v.score_transform})
    if (*transform) check_norm((*transform)->norm);
  MG_CHECK(v.score_labels == 0 || (!v.pair_head && !v.head_transform && !v.output_bias),
           "a model that scores texts has no head of a language model");
  MG_CHECK(v.score_labels > 0 ||
               (!v.score_transform && !v.score_bias && v.scored == ScoredTokens::last_token),
           "only a model that scores texts has parts of a score head");
  const nn::AttentionConfig* a = v.first_attention();
  MG_CHECK(v.scored == ScoredTokens::last_token || (a != nullptr && a->two_sided),
           "only an encoder, whose tokens attend to later ones, can score texts by their first "
           "token or the mean of all, or score each token; a decoder scores a text at its last");
  MG_CHECK(v.scored != ScoredTokens::mean || v.hidden_size % a->heads == 0,
           "the mean of a text's tokens is computed in {} parts, which do not divide the hidden "
           "size {}: change --num-attention-heads",
           a == nullptr ? 0 : a->heads, v.hidden_size);
  MG_CHECK(!v.headless || (v.score_labels == 0 && !v.predicts_masked && !v.output_bias &&
                           !v.pair_head && v.untied && v.prediction.depths == 0),
           "an encoder without a head has no output layer, scores or pairs");
  MG_CHECK(v.scored != ScoredTokens::span || v.score_labels == 2,
           "a model of answers' spans has {} scores for each token; it must have 2",
           v.score_labels);
}

}  // namespace

int64_t HeadTransform::parameters(int64_t hidden) const {
  const int64_t dense = hidden * hidden + (bias ? hidden : 0);
  return kind == Kind::dense_norm ? dense + norm.parameters(hidden) : dense;
}

const nn::AttentionConfig* DecoderValue::first_attention() const {
  const auto found =
      std::ranges::find_if(layers, [](const LayerValue& l) { return l.attention() != nullptr; });
  return found == layers.end() ? nullptr : found->attention();
}

const nn::StateSpaceConfig* DecoderValue::first_state_space() const {
  const auto found =
      std::ranges::find_if(layers, [](const LayerValue& l) { return l.state_space() != nullptr; });
  return found == layers.end() ? nullptr : found->state_space();
}

const nn::MlpConfig* DecoderValue::first_mlp() const {
  const auto found =
      std::ranges::find_if(layers, [](const LayerValue& l) { return l.mlp() != nullptr; });
  return found == layers.end() ? nullptr : found->mlp();
}

const nn::MoeConfig* DecoderValue::first_moe() const {
  const auto found =
      std::ranges::find_if(layers, [](const LayerValue& l) { return l.moe() != nullptr; });
  return found == layers.end() ? nullptr : found->moe();
}

int64_t DecoderValue::context_length() const {
  if (context) return *context;
  if (rotary.size() != 1) return max_position_embeddings;
  const nn::RotaryConfig& r = rotary.begin()->second;
  const bool yarn = r.scaling == nn::RopeScaling::yarn;
  const bool extends =
      yarn || r.scaling == nn::RopeScaling::linear || r.scaling == nn::RopeScaling::dynamic;
  if (!extends || !(r.factor > 1)) return max_position_embeddings;
  const int64_t before = yarn ? r.original_positions : max_position_embeddings;
  return std::llround(std::min(r.factor * static_cast<double>(before), 0x1p62));
}

void DecoderValue::check() const {
  check_size(num_layers(), kMaxLayers, "num-layers");
  check_size(hidden_size, kMaxHidden, "hidden-size");
  check_size(vocab_size, kMaxVocabulary, "vocab-size");
  check_size(max_position_embeddings, kMaxPositions, "max-position-embeddings");
  MG_CHECK(context_length() > 0 && context_length() <= kMaxPositions,
           "the RoPE scaling extends the context to {} tokens; the number must lie in [1, {}]: "
           "lower its factor",
           context_length(), kMaxPositions);
  const LayerValue* before = nullptr;
  for (const LayerValue& layer : layers) {
    if (before == nullptr || !(layer == *before)) check_layer(*this, layer);
    before = &layer;
  }
  check_prediction(*this);
  check_encoder(*this);
  check_encoder_layers(*this);
  check_shared_positions(*this);
  check_norm(final_norm);
  check_number(embedding_scale, embedding_scale != 0, "embedding-multiplier", "other than 0");
  check_number(logits_scale, logits_scale != 0, "output-multiplier", "other than 0");
  check_number(logits_soft_cap, logits_soft_cap >= 0, "final-logit-softcapping", "0 or more");
  check_number(hidden_dropout, hidden_dropout >= 0 && hidden_dropout < 1, "hidden-dropout",
               "in [0, 1)");
  check_number(attention_dropout, attention_dropout >= 0 && attention_dropout < 1,
               "attention-dropout", "in [0, 1)");
  for (const auto& [coefficient, flag] : {std::pair{router.aux_loss, "moe-aux-loss-coeff"},
                                          {router.sequence_aux_loss, "moe-aux-loss-coeff"},
                                          {router.global_aux_loss, "moe-aux-loss-coeff"},
                                          {router.z_loss, "moe-z-loss-coeff"},
                                          {router.bias_update_rate, "moe-router-bias-update-rate"}})
    check_number(coefficient, coefficient >= 0, flag, "0 or more");
  check_number(width_multiplier, width_multiplier > 0, "mup-width-mult", "positive");
  MG_CHECK(width_multiplier == 1 || !xavier_init,
           "--use-mup and --init-method-xavier-uniform are mutually exclusive: muP scales "
           "--init-method-std by the model's width");
  check_number(init_method_std, init_method_std >= 0, "init-method-std", "0 or more");
  if (embedding_init_std)
    check_number(*embedding_init_std, *embedding_init_std >= 0, "embedding-init-method-std",
                 "0 or more");
  MG_CHECK(score_labels >= 0 && score_labels <= kMaxVocabulary,
           "a score head has {} labels; their number must lie in [1, {}]", score_labels,
           kMaxVocabulary);
  MG_CHECK(std::ssize(score_label_names) == score_labels,
           "a score head with {} labels has {} label names; give one for each", score_labels,
           score_label_names.size());
}

}  // namespace megatron::models
