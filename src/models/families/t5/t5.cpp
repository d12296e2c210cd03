// T5 (Raffel et al. 2020), T5 1.1 and Flan-T5, mT5 (Xue et al. 2021) and UMT5 (Chung et al. 2023):
// an encoder and a decoder with RMSNorm before each part, relative positions in buckets and scores
// that are not divided by the root of the head size.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "models/families/all.h"
#include "models/families/config_json.h"

namespace megatron::models {
namespace t5 {

constexpr std::string_view kDefaults = R"({
  "vocab_size": 32128, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8,
  "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128,
  "dropout_rate": 0.1, "layer_norm_epsilon": 1e-6, "initializer_factor": 1.0,
  "feed_forward_proj": "relu", "tie_word_embeddings": true, "decoder_start_token_id": 0})";
constexpr std::string_view kMt5Defaults = R"({
  "vocab_size": 250112, "d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": 8, "num_heads": 6,
  "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128,
  "dropout_rate": 0.1, "layer_norm_epsilon": 1e-6, "initializer_factor": 1.0,
  "feed_forward_proj": "gated-gelu", "tie_word_embeddings": true, "decoder_start_token_id": 0})";

// Relative positions have no table that ends.
constexpr int64_t kPositions = 1 << 20;
constexpr double kInitStd = 0.02;  // of initializer_factor 1
constexpr std::string_view kActivation = "feed_forward_proj", kGated = "gated-", kGelu = "gelu";

// "relu" or "gated-silu"; "gated-gelu" has GELU's tanh form.
nn::MlpConfig mlp_of(const Json& j) {
  std::string name = text(j, kActivation);
  const bool gated = name.starts_with(kGated);
  if (gated) name = name.substr(kGated.size());
  if (gated && name == kGelu) name = activation_name(kernels::Activation::gelu_tanh);
  Json named(Json::Object{});
  named.set(kActivation, name);
  return {.ffn = integer(j, "d_ff"), .activation = activation(named, kActivation), .gated = gated};
}

std::string activation_of(const nn::MlpConfig& mlp) {
  const bool tanh = mlp.activation == kernels::Activation::gelu_tanh;
  const std::string name = mlp.gated && tanh ? std::string(kGelu) : activation_name(mlp.activation);
  return mlp.gated ? std::string(kGated) + name : name;
}

struct Kind {
  std::string_view model_class;    // "T5"
  bool tables_everywhere = false;  // each layer has relative positions of its own
  bool may_scale = true;           // whether a tied output layer's input is divided by sqrt(H)
};

bool scales(const Json& j, const Kind& kind) {
  if (!kind.may_scale) return false;
  return boolean(j, "scale_decoder_outputs", boolean(j, "tie_word_embeddings"));
}

DecoderValue read(const Json& j, const Kind& kind) {
  const int64_t encoder = layer_count(j, "num_layers"),
                decoder = layer_count(j, "num_decoder_layers", encoder),
                heads = integer(j, "num_heads");
  nn::AttentionConfig plain{
      .heads = heads, .kv_heads = heads, .head_size = integer(j, "d_kv"), .scale = 1};
  nn::AttentionConfig attention = plain;
  attention.relative = {.buckets = integer(j, "relative_attention_num_buckets"),
                        .max_distance = integer(j, "relative_attention_max_distance")};
  const LayerValue layer{
      .mixer = attention,
      .feed_forward = mlp_of(j),
      .norm = {.kind = nn::Normalization::rms_norm, .epsilon = positive(j, "layer_norm_epsilon")}};
  DecoderValue value{.vocab_size = integer(j, "vocab_size"),
                     .hidden_size = integer(j, "d_model"),
                     .max_position_embeddings = kPositions,
                     .encoder_layers = encoder,
                     .start_token = count(j, "decoder_start_token_id"),
                     .final_norm = layer.norm};
  value.layers.assign(static_cast<size_t>(encoder + decoder), layer);
  for (int64_t i = 0; i < encoder + decoder; ++i) {
    LayerValue& own = value.layers[static_cast<size_t>(i)];
    own.attention()->two_sided = i < encoder;
    own.attention()->relative.shared = !kind.tables_everywhere && i != 0 && i != encoder;
    if (i >= encoder) own.cross = plain;
  }
  const bool scaled = scales(j, kind);
  if (scaled) value.logits_scale = 1 / std::sqrt(static_cast<double>(value.hidden_size));
  // The files of T5 1.1, whose output layer is its own, say that it is tied.
  value.untied = !scaled || !boolean(j, "tie_word_embeddings");
  value.hidden_dropout = value.attention_dropout = number(j, "dropout_rate");
  value.init_method_std = kInitStd * positive(j, "initializer_factor");
  return value;
}

Json write(const DecoderValue& value, const Kind& kind) {
  const LayerValue& first = value.layers[0];
  const nn::AttentionConfig* a = first.attention();
  const nn::MlpConfig* mlp = first.mlp();
  MG_CHECK(value.encoder_layers > 0 && a != nullptr && mlp != nullptr,
           "a model without an encoder, without attention or without an MLP");
  const bool scaled = !value.untied || value.logits_scale != 1;
  Json j(Json::Object{});
  j.set("architectures", Json::Array{std::string(kind.model_class) + "ForConditionalGeneration"});
  j.set("d_ff", mlp->ffn);
  j.set("d_kv", a->head_size);
  j.set("d_model", value.hidden_size);
  j.set("decoder_start_token_id", std::max<int64_t>(value.start_token, 0));
  j.set("dropout_rate", value.hidden_dropout);
  j.set(kActivation, activation_of(*mlp));
  j.set("initializer_factor", value.init_method_std / kInitStd);
  j.set("is_encoder_decoder", true);
  j.set("layer_norm_epsilon", first.norm.epsilon);
  j.set("num_decoder_layers", value.num_layers() - value.encoder_layers);
  j.set("num_heads", a->heads);
  j.set("num_layers", value.encoder_layers);
  j.set("relative_attention_max_distance", a->relative.max_distance);
  j.set("relative_attention_num_buckets", a->relative.buckets);
  if (kind.may_scale) j.set("scale_decoder_outputs", scaled);
  j.set("tie_word_embeddings", !(value.untied && scaled));
  j.set("vocab_size", value.vocab_size);
  return j;
}

// Names of a layer's parts in the order of its sublayers: self-attention, cross attention, MLP.
std::vector<TensorName> layer_names(bool gated, bool decodes) {
  std::vector<TensorName> names = {
      {"attention_norm", "layer.0.layer_norm"},
      {"attention.qkv", "layer.0.SelfAttention.q", Take::q},
      {"attention.qkv", "layer.0.SelfAttention.k", Take::k},
      {"attention.qkv", "layer.0.SelfAttention.v", Take::v},
      {"attention.output", "layer.0.SelfAttention.o"},
      {"attention.relative_bias", "layer.0.SelfAttention.relative_attention_bias"}};
  const auto add = [&](std::initializer_list<TensorName> more) { names.insert(names.end(), more); };
  if (decodes)
    add({{"cross_attention_norm", "layer.1.layer_norm"},
         {"cross_attention.q", "layer.1.EncDecAttention.q"},
         {"cross_attention.kv", "layer.1.EncDecAttention.k", Take::gate},
         {"cross_attention.kv", "layer.1.EncDecAttention.v", Take::up},
         {"cross_attention.output", "layer.1.EncDecAttention.o"},
         {"mlp_norm", "layer.2.layer_norm"},
         {"mlp.down", "layer.2.DenseReluDense.wo"}});
  else add({{"mlp_norm", "layer.1.layer_norm"}, {"mlp.down", "layer.1.DenseReluDense.wo"}});
  if (!gated && decodes) add({{"mlp.up", "layer.2.DenseReluDense.wi"}});
  if (!gated && !decodes) add({{"mlp.up", "layer.1.DenseReluDense.wi"}});
  if (gated && decodes)
    add({{"mlp.up", "layer.2.DenseReluDense.wi_0", Take::gate},
         {"mlp.up", "layer.2.DenseReluDense.wi_1", Take::up}});
  if (gated && !decodes)
    add({{"mlp.up", "layer.1.DenseReluDense.wi_0", Take::gate},
         {"mlp.up", "layer.1.DenseReluDense.wi_1", Take::up}});
  return names;
}

FamilyTensors tensors(const DecoderValue& value) {
  const nn::MlpConfig* mlp = value.first_mlp();
  const bool gated = mlp != nullptr && mlp->gated;
  return {.layer_prefix = "decoder.block.*.",
          .outside = {{"embedding", "shared"},
                      {"encoder_norm", "encoder.final_layer_norm"},
                      {"final_norm", "decoder.final_layer_norm"},
                      {"output", "lm_head"}},
          .layer = layer_names(gated, true),
          .encoder_prefix = "encoder.block.*.",
          .encoder_layer = layer_names(gated, false)};
}

constexpr DecoderFamily::Key kKeys[] = {
    {"--relative-attention-num-buckets", "relative_attention_num_buckets"},
    {"--relative-attention-max-distance", "relative_attention_max_distance"},
    {"--num-attention-heads", "num_heads"},
    {"--ffn-hidden-size", "d_ff"},
    {"--hidden-size", "d_model"},
    {"--kv-channels", "d_kv"},
    {"--num-layers", "num_layers"},
    {"--norm-epsilon", "layer_norm_epsilon"},
    {"--hidden-dropout", "dropout_rate"},
    {"--attention-dropout", "dropout_rate"},
    {"--init-method-std", "initializer_factor"}};

// Copies of the table of tokens, and a table that no computation reads.
constexpr std::string_view kBuffers[] = {
    "encoder.embed_tokens.weight", "decoder.embed_tokens.weight",
    "decoder.block.*.layer.1.EncDecAttention.relative_attention_bias.weight"};

constexpr Kind kPlainKind{.model_class = "T5"},
    kMultilingual{.model_class = "MT5", .may_scale = false},
    kUniversal{.model_class = "UMT5", .tables_everywhere = true};

}  // namespace t5

const DecoderFamily kT5 = {
    .name = "t5",
    .models = "T5, T5 1.1, Flan-T5",
    .read = [](const Json& j) { return t5::read(j, t5::kPlainKind); },
    .write = [](const DecoderValue& value) { return t5::write(value, t5::kPlainKind); },
    .tensors = t5::tensors,
    .defaults = t5::kDefaults,
    .keys = t5::kKeys,
    .buffers = t5::kBuffers,
    .base_prefix = ""};

const DecoderFamily kMt5 = {
    .name = "mt5",
    .models = "mT5",
    .read = [](const Json& j) { return t5::read(j, t5::kMultilingual); },
    .write = [](const DecoderValue& value) { return t5::write(value, t5::kMultilingual); },
    .tensors = t5::tensors,
    .defaults = t5::kMt5Defaults,
    .keys = t5::kKeys,
    .buffers = t5::kBuffers,
    .base_prefix = ""};

const DecoderFamily kUmt5 = {
    .name = "umt5",
    .models = "UMT5",
    .read = [](const Json& j) { return t5::read(j, t5::kUniversal); },
    .write = [](const DecoderValue& value) { return t5::write(value, t5::kUniversal); },
    .tensors = t5::tensors,
    .defaults = t5::kMt5Defaults,
    .keys = t5::kKeys,
    .buffers = t5::kBuffers,
    .base_prefix = ""};

}  // namespace megatron::models
