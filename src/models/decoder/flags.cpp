#include "models/decoder/flags.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/text_parts.h"
#include "models/decoder/heterogeneous.h"
#include "models/facts.h"
#include "models/hybrid_pattern.h"
#include "models/layer_pattern.h"

namespace megatron::models {
namespace {

int64_t required(const std::optional<int64_t>& value, std::string_view flag) {
  MG_CHECK(value.has_value(),
           "the model's shape needs --{}; or give --model DIR with a Hugging Face config.json",
           flag);
  return *value;
}

bool rotates(const ModelFlags& f) {
  return f.position_embedding == PositionEmbedding::rope ||
         f.position_embedding == PositionEmbedding::yarn;
}

// Parses "127,0": the number of tokens before and after a token; -1: all of them. two_sided: both
// must be equal.
int64_t window_of_flag(const std::string& text, bool two_sided) {
  int64_t sides[2] = {0, 0};
  const char *at = text.data(), *end = at + text.size();
  bool good = true;
  for (int side = 0; side < 2 && good; ++side) {
    while (at != end && (*at == ' ' || *at == '(' || *at == ',')) ++at;
    const auto [next, error] = std::from_chars(at, end, sides[side]);
    good = error == std::errc() && sides[side] >= -1 && sides[side] < kMaxPositions;
    at = next;
  }
  while (at != end && (*at == ' ' || *at == ')')) ++at;
  MG_CHECK(good && at == end,
           "--window-size is '{}'; expected two numbers, how many earlier and later tokens are "
           "visible, such as 127,0 (-1: all)",
           text);
  MG_CHECK(!two_sided || sides[0] == sides[1],
           "--window-size is '{}', but an encoder sees as many tokens before as after; use {},{}",
           text, sides[0], sides[0]);
  MG_CHECK(two_sided || sides[1] <= 0,
           "--window-size is '{}', but a decoder does not attend to later tokens; use {},0", text,
           sides[0]);
  return sides[0] + 1;
}

nn::QkNorm qk_norm_of(const ModelFlags& f) {
  MG_CHECK(!f.qk_layernorm || !f.qk_l2_norm,
           "--qk-layernorm and --qk-l2-norm are mutually "
           "exclusive");
  return f.qk_layernorm ? nn::QkNorm::head : f.qk_l2_norm ? nn::QkNorm::l2 : nn::QkNorm::none;
}

nn::Sinks sinks_of(SoftmaxType type) {
  switch (type) {
    case SoftmaxType::off_by_one: return nn::Sinks::zero;
    case SoftmaxType::learnable: return nn::Sinks::learned;
    default: return nn::Sinks::none;
  }
}

// YaRN's concentration factor from mscale and mscale_all_dim, as in Megatron-LM.
double concentration(double factor, double mscale, double mscale_all_dim) {
  const auto scale = [factor](double m) {
    return factor <= 1 ? 1 : 0.1 * m * std::log(factor) + 1;
  };
  return scale(mscale) / scale(mscale_all_dim);
}

// Multi-latent attention rotates adjacent dims, and takes YaRN's mscale-all-dim for its scores,
// too.
nn::RotaryConfig latent_rotary_of(const ModelFlags& f) {
  nn::RotaryConfig r{.base = f.rotary_base, .interleaved = true};
  if (!f.latent_yarn || f.rotary_scaling_factor == 1) return r;
  r.scaling = nn::RopeScaling::yarn;
  r.factor = f.rotary_scaling_factor;
  r.original_positions = f.yarn_original_positions.value_or(4096);
  r.beta_fast = f.yarn_beta_fast.value_or(32);
  r.beta_slow = f.yarn_beta_slow.value_or(1);
  r.truncate = f.yarn_round_to_int;
  r.mscale = f.mscale;
  r.mscale_all_dim = f.mscale_all_dim;
  r.attention_factor = concentration(r.factor, f.mscale, f.mscale_all_dim);
  return r;
}

nn::RotaryConfig rotary_of(const ModelFlags& f) {
  if (f.multi_latent_attention) return latent_rotary_of(f);
  nn::RotaryConfig r{.base = f.rotary_base, .interleaved = f.rotary_interleaved};
  if (f.position_embedding == PositionEmbedding::yarn) {
    r.scaling = nn::RopeScaling::yarn;
    r.factor = f.rotary_scaling_factor;
    r.original_positions = f.yarn_original_positions.value_or(4096);
    r.beta_fast = f.yarn_beta_fast.value_or(32);
    r.beta_slow = f.yarn_beta_slow.value_or(1);
    r.truncate = f.yarn_round_to_int;
    if (f.mscale != 1 || f.mscale_all_dim != 0)
      r.attention_factor = concentration(r.factor, f.mscale, f.mscale_all_dim);
    return r;
  }
  r.fraction = f.rotary_percent;
  MG_CHECK(!f.use_rope_scaling || !f.rotary_interpolation,
           "--use-rope-scaling and --rotary-seq-len-interpolation-factor are mutually exclusive");
  if (f.use_rope_scaling) {
    r.scaling = nn::RopeScaling::llama3;
    r.factor = f.rope_scaling_factor;
    r.original_positions = 8192;
  } else if (f.rotary_interpolation) {
    r.scaling = nn::RopeScaling::linear;
    r.factor = *f.rotary_interpolation;
  }
  return r;
}

// Sets which layers have a window, and which have no rotation.
void apply_patterns(const ModelFlags& f, DecoderValue& value) {
  const auto pattern = [&](std::string_view flag, const std::optional<std::string>& text,
                           bool every_nth) {
    return text ? layer_pattern(flag, *text, value.num_layers(), every_nth) : std::vector<bool>();
  };
  const std::vector<bool> windowed =
                              pattern("window-attn-skip-freq", f.window_attn_skip_freq, false),
                          unrotated = pattern("no-rope-freq", f.no_rope_freq, true);
  const int64_t window = f.window_size ? window_of_flag(*f.window_size, f.encoder) : 0;
  for (size_t i = 0; i < value.layers.size(); ++i) {
    nn::AttentionConfig* a = value.layers[i].attention();
    if (a == nullptr) continue;
    if (windowed.empty() || windowed[i]) a->window = window;
    if (!unrotated.empty() && unrotated[i]) a->rotary.clear();
  }
}

nn::AttentionConfig attention_of(const ModelFlags& f, int64_t hidden) {
  nn::AttentionConfig a{.heads = required(f.num_attention_heads, "num-attention-heads"),
                        .qkv_bias = f.add_bias_linear || f.add_qkv_bias,
                        .output_bias = f.add_bias_linear};
  a.kv_heads = f.group_query_attention ? f.num_query_groups : a.heads;
  MG_CHECK(f.kv_channels || hidden % a.heads == 0,
           "--hidden-size {} is not a multiple of --num-attention-heads {}; change one of them "
           "or give --kv-channels",
           hidden, a.heads);
  a.head_size = f.kv_channels.value_or(hidden / a.heads);
  if (rotates(f)) a.rotary = "default";
  a.qk_norm = qk_norm_of(f);
  a.sinks = sinks_of(f.softmax_type);
  a.output_gate = f.attention_output_gate;
  return a;
}

nn::LatentAttentionConfig latent_attention_of(const ModelFlags& f) {
  struct Other {
    bool given;
    const char* flag;
  };
  for (const Other& other :
       {Other{f.group_query_attention, "group-query-attention"},
        {f.kv_channels.has_value(), "kv-channels"},
        {f.qk_l2_norm, "qk-l2-norm"},
        {f.softmax_type != SoftmaxType::vanilla, "softmax-type"},
        {f.window_size.has_value(), "window-size"},
        {f.no_rope_freq.has_value(), "no-rope-freq"},
        {f.attention_output_gate, "attention-output-gate"},
        {f.rotary_interleaved, "rotary-interleaved"},
        {f.rotary_percent != 1, "rotary-percent"},
        {f.rotary_interpolation.has_value(), "rotary-seq-len-interpolation-factor"},
        {f.use_rope_scaling, "use-rope-scaling"},
        {f.use_mup, "use-mup"},
        {f.heterogeneous_layers || f.heterogeneous_layers_json,
         "heterogeneous-layers-config-path"}})
    MG_CHECK(!other.given, "--multi-latent-attention and --{} are mutually exclusive", other.flag);
  MG_CHECK(f.position_embedding == PositionEmbedding::rope ||
               f.position_embedding == PositionEmbedding::none,
           "--multi-latent-attention needs --position-embedding-type rope (with YaRN's scaling by "
           "--rotary-scaling-factor) or none");
  return {.heads = required(f.num_attention_heads, "num-attention-heads"),
          .query_rank = f.q_lora_rank.value_or(0),
          .latent_rank = f.kv_lora_rank,
          .head = {.plain = f.qk_head_dim, .rotated = f.qk_pos_emb_head_dim, .value = f.v_head_dim},
          .normalized = f.qk_layernorm,
          .norm_epsilon = f.norm_epsilon,
          .output_bias = f.add_bias_linear,
          .rotary = rotates(f) ? "default" : ""};
}

MixerValue mixer_of(const ModelFlags& f, int64_t hidden) {
  if (f.multi_latent_attention) return latent_attention_of(f);
  return attention_of(f, hidden);
}

kernels::Activation activation_of(const ModelFlags& f) {
  using kernels::Activation;
  MG_CHECK(int{f.swiglu} + int{f.squared_relu} + int{f.quick_geglu} <= 1,
           "--swiglu, --squared-relu and --quick-geglu are mutually exclusive");
  if (f.swiglu) return Activation::silu;
  if (f.squared_relu) return Activation::squared_relu;
  if (f.quick_geglu) return Activation::quick_gelu;
  return f.bias_gelu_fusion || f.openai_gelu ? Activation::gelu_tanh : Activation::gelu_erf;
}

nn::MlpConfig mlp_of(const ModelFlags& f, int64_t hidden) {
  const int64_t usual = f.swiglu ? std::max<int64_t>(8 * hidden / 3 / 64 * 64, 64) : 4 * hidden;
  return {.ffn = f.ffn_hidden_size.value_or(usual),
          .activation = activation_of(f),
          .gated = f.swiglu || f.quick_geglu,
          .bias = f.add_bias_linear,
          .clamp = f.activation_clamp.value_or(0),
          .up_offset = f.glu_linear_offset};
}

nn::StateSpaceConfig state_space_of(const ModelFlags& f, int64_t hidden) {
  const int64_t width = 2 * hidden;
  MG_CHECK(f.mamba_num_heads || width % f.mamba_head_dim == 0,
           "2 x --hidden-size {} is not a multiple of --mamba-head-dim {}; change one of them or "
           "give --mamba-num-heads",
           hidden, f.mamba_head_dim);
  return {.heads = f.mamba_num_heads.value_or(width / f.mamba_head_dim),
          .head_size = f.mamba_head_dim,
          .groups = f.mamba_num_groups,
          .states = f.mamba_state_dim};
}

// Throws Error for flags of models whose layers have two blocks each.
void check_hybrid(const ModelFlags& f) {
  struct Other {
    bool given;
    const char* flag;
  };
  for (const Other& other :
       {Other{f.mtp_num_layers.value_or(0) != 0, "mtp-num-layers"},
        {f.heterogeneous_layers || f.heterogeneous_layers_json, "heterogeneous-layers-config-path"},
        {f.moe.layer_freq != MoeFlags{}.layer_freq, "moe-layer-freq"},
        {f.encoder, "task mlm"},
        {f.encoder_decoder, "task span-corruption or seq2seq"}})
    MG_CHECK(!other.given, "--hybrid-layer-pattern and --{} are mutually exclusive", other.flag);
}

// Layers of one block each, by their letters.
void apply_hybrid_pattern(const ModelFlags& f, const std::string& pattern,
                          const nn::NormConfig& norm, DecoderValue& value) {
  check_hybrid(f);
  const std::string letters = hybrid_letters(pattern);
  MG_CHECK(
      !f.num_layers || *f.num_layers == std::ssize(letters),
      "--num-layers is {}, and --hybrid-layer-pattern '{}' has a letter for each of {} layers: "
      "leave out --num-layers, or change one of them",
      *f.num_layers, pattern, letters.size());
  const auto needs = [&](char letter, bool given, std::string_view flag) {
    const bool has = letters.find(letter) != letters.npos;
    MG_CHECK(has == given,
             "--hybrid-layer-pattern '{}' has {} '{}', and --{} is {}; give both or neither",
             pattern, has ? "the letter" : "no letter", letter, flag,
             given ? "given" : "not given");
  };
  needs('E', f.moe.num_experts.has_value(), "num-experts");
  needs('+', f.multi_latent_attention, "multi-latent-attention");
  for (const char letter : letters) {
    LayerValue layer{.mixer = NoOp{}, .feed_forward = NoOp{}, .norm = norm};
    if (letter == 'M') layer.mixer = state_space_of(f, value.hidden_size);
    if (letter == '*' || letter == '+') layer.mixer = mixer_of(f, value.hidden_size);
    if (letter == '-') layer.feed_forward = mlp_of(f, value.hidden_size);
    if (letter == 'E') layer.feed_forward = moe_of(f.moe, mlp_of(f, value.hidden_size));
    value.layers.push_back(std::move(layer));
  }
}

// Checks the balancing methods that choose experts by more than their scores.
void check_balancing(const MoeFlags& m, const nn::RouterTraining& training, int64_t experts) {
  const bool softmax = m.score == kernels::RouterScore::softmax;
  MG_CHECK(!softmax || !m.enable_expert_bias,
           "--moe-router-enable-expert-bias needs --moe-router-score-function sigmoid or "
           "sqrtsoftplus");
  MG_CHECK(!training.quantile || !m.enable_expert_bias,
           "--moe-router-load-balancing-type quantile_balancing has its own bias; leave out "
           "--moe-router-enable-expert-bias");
  MG_CHECK(!training.quantile || m.topk < experts,
           "--moe-router-load-balancing-type quantile_balancing needs a --moe-router-topk below "
           "--num-experts {}, not {}",
           experts, m.topk);
  MG_CHECK(!m.num_groups || (!training.quantile && !training.sinkhorn),
           "--moe-router-load-balancing-type sinkhorn and quantile_balancing choose among all "
           "experts; leave out --moe-router-num-groups {}",
           *m.num_groups);
  MG_CHECK(!training.sinkhorn || !m.enable_expert_bias,
           "--moe-router-load-balancing-type sinkhorn chooses experts without a bias; leave out "
           "--moe-router-enable-expert-bias");
  MG_CHECK(!training.sinkhorn || softmax || m.topk == 1,
           "--moe-router-load-balancing-type sinkhorn with --moe-router-topk {} always weights "
           "experts by a softmax; leave out --moe-router-score-function",
           m.topk);
}

void apply_experts(const ModelFlags& f, DecoderValue& value) {
  if (!f.moe.num_experts) return;
  const nn::MoeConfig moe = moe_of(f.moe, *value.layers[0].mlp());
  const std::vector<bool> chosen = expert_layers(f.moe, value.num_layers());
  for (size_t i = 0; i < chosen.size(); ++i)
    if (chosen[i]) value.layers[i].feed_forward = moe;
  MG_CHECK(value.first_moe() != nullptr,
           "--moe-layer-freq is '{}', with which none of the {} layers has experts; change it, or "
           "leave out --num-experts",
           f.moe.layer_freq, value.num_layers());
}

// muP (Yang et al. 2022) as in Megatron-LM: by the ratio of this model's width to that of the model
// whose settings are transferred.
void apply_mup(const ModelFlags& f, DecoderValue& value) {
  if (!f.use_mup) return;
  const int64_t base = f.mup_base_hidden_size.value_or(value.hidden_size),
                base_head = f.mup_base_head_dim.value_or(1);
  MG_CHECK(std::isfinite(f.mup_attn_scale_power), "--mup-attn-scale-power is {}; it must be finite",
           f.mup_attn_scale_power);
  value.width_multiplier = static_cast<double>(value.hidden_size) / static_cast<double>(base);
  value.embedding_scale = f.mup_embedding_mult;
  value.logits_scale = f.mup_output_mult.value_or(1 / value.width_multiplier);
  for (LayerValue& layer : value.layers)
    if (nn::AttentionConfig* a = layer.attention())
      a->scale = std::sqrt(static_cast<double>(base_head)) /
                 std::pow(static_cast<double>(a->head_size), f.mup_attn_scale_power);
}

void apply_layer_list(const ModelFlags& f, DecoderValue& value) {
  MG_CHECK(!f.heterogeneous_layers || !f.heterogeneous_layers_json,
           "--heterogeneous-layers-config-path and --heterogeneous-layers-config-encoded-json "
           "are mutually exclusive");
  if (f.heterogeneous_layers)
    apply_block_configs(Json::read(*f.heterogeneous_layers),
                        "--heterogeneous-layers-config-path " + *f.heterogeneous_layers, value);
  if (f.heterogeneous_layers_json)
    apply_block_configs(Json::parse(*f.heterogeneous_layers_json),
                        "--heterogeneous-layers-config-encoded-json", value);
}

// Megatron-LM's BERT, or with --model-family bert Hugging Face's, whose norms are those of sums.
void make_encoder(const ModelFlags& f, DecoderValue& value) {
  MG_CHECK(
      !f.multi_latent_attention,
      "--task mlm trains an encoder, and --multi-latent-attention is for decoders; leave it out");
  MG_CHECK(!f.mtp_num_layers || *f.mtp_num_layers == 0,
           "--task mlm trains an encoder, and --mtp-num-layers {} is for decoders; leave it out",
           *f.mtp_num_layers);
  const nn::NormConfig norm = value.final_norm;
  const bool of_sums = f.model_family == "bert";
  for (LayerValue& layer : value.layers) {
    if (nn::AttentionConfig* a = layer.attention()) a->two_sided = true;
    if (of_sums) {
      layer.norm_before = false;
      layer.norm_of_sum = true;
    }
  }
  if (of_sums) {
    value.embedding_norm = norm;
    value.has_final_norm = false;
  }
  value.token_types = 2;
  value.predicts_masked = true;
  value.head_transform = {.activation = activation_of(f), .bias = f.add_bias_linear, .norm = norm};
  value.output_bias = true;
  value.pair_head = f.bert_binary_head;
  if (of_sums) value.score_pad_token = 0;
}

// Throws Error for flags of parts that Megatron-LM's encoder-decoder does not have.
void check_encoder_decoder(const ModelFlags& f) {
  struct Other {
    bool given;
    const char* flag;
  };
  for (const Other& other : {Other{f.multi_latent_attention, "multi-latent-attention"},
                             {f.mtp_num_layers.value_or(0) != 0, "mtp-num-layers"},
                             {f.moe.num_experts.has_value(), "num-experts"},
                             {f.window_size.has_value(), "window-size"},
                             {f.no_rope_freq.has_value(), "no-rope-freq"},
                             {f.softmax_type != SoftmaxType::vanilla, "softmax-type"},
                             {f.attention_output_gate, "attention-output-gate"},
                             {f.use_mup, "use-mup"},
                             {f.heterogeneous_layers || f.heterogeneous_layers_json,
                              "heterogeneous-layers-config-path"}})
    MG_CHECK(!other.given,
             "--task span-corruption and seq2seq train an encoder-decoder, and --{} is for "
             "decoders alone; leave it out",
             other.flag);
}

// Megatron-LM's T5: its layers are those of its other models, the decoder's with cross attention,
// and so are their positions, which both stacks have.
void make_encoder_decoder(const ModelFlags& f, DecoderValue& value) {
  check_encoder_decoder(f);
  const int64_t encoder = value.num_layers(), decoder = f.decoder_num_layers.value_or(encoder);
  MG_CHECK(decoder <= 1 << 16, "--decoder-num-layers is {}; it must lie in [1, {}]", decoder,
           1 << 16);
  value.encoder_layers = encoder;
  const LayerValue layer = value.layers[0];
  nn::AttentionConfig cross = *layer.attention();
  cross.rotary.clear();
  value.layers.assign(static_cast<size_t>(encoder + decoder), layer);
  for (int64_t i = 0; i < encoder + decoder; ++i) {
    LayerValue& own = value.layers[static_cast<size_t>(i)];
    nn::AttentionConfig& attention = *own.attention();
    attention.two_sided = i < encoder;
    if (f.position_embedding == PositionEmbedding::relative)
      attention.relative = {.buckets = f.relative_buckets,
                            .max_distance = f.relative_max_distance,
                            .shared = i != 0 && i != encoder};
    if (i >= encoder) own.cross = cross;
  }
  value.output_bias = !f.untie;
}

}  // namespace

nn::MoeConfig moe_of(const MoeFlags& m, const nn::MlpConfig& mlp) {
  const nn::RouterTraining training = m.training();
  nn::MoeConfig moe{.experts = required(m.num_experts, "num-experts"),
                    .choices = m.topk,
                    .router = {.score = m.score,
                               .softmax_first = m.pre_softmax,
                               .normalised = m.score != kernels::RouterScore::softmax && m.topk > 1,
                               .scale = m.topk_scaling_factor.value_or(1)},
                    .correction_bias = m.enable_expert_bias || training.quantile,
                    .weights_on_input = m.apply_probs_on_input,
                    .expert = mlp,
                    .latent = m.latent_size.value_or(0),
                    .shared_ffn = m.shared_ffn.value_or(0),
                    .shared_gate = m.shared_expert_gate};
  moe.expert.ffn = m.ffn_hidden_size.value_or(mlp.ffn);
  const bool softmax = m.score == kernels::RouterScore::softmax;
  MG_CHECK(softmax || !m.pre_softmax,
           "--moe-router-pre-softmax applies to --moe-router-score-function softmax only");
  check_balancing(m, training, moe.experts);
  if (training.sinkhorn) {
    moe.router.score = m.topk == 1 ? kernels::RouterScore::sigmoid : kernels::RouterScore::softmax;
    moe.router.softmax_first = m.topk > 1;
    return moe;
  }
  MG_CHECK(!softmax || m.topk != 1 || m.pre_softmax,
           "--moe-router-topk 1 with a softmax over the chosen expert gives every token the weight "
           "1; add --moe-router-pre-softmax");
  MG_CHECK(m.num_groups.has_value() == m.group_topk.has_value(),
           "--moe-router-num-groups and --moe-router-group-topk need each other; give both");
  if (!m.num_groups) return moe;
  MG_CHECK(*m.num_groups > 0 && *m.num_groups <= moe.experts,
           "--moe-router-num-groups is {}; it must lie in [1, {}], the number of experts",
           *m.num_groups, moe.experts);
  moe.router.groups = *m.num_groups;
  moe.router.chosen_groups = *m.group_topk;
  if (moe.router.chosen_groups > 0)
    moe.router.group_best = std::max<int64_t>(1, m.topk / moe.router.chosen_groups);
  return moe;
}

// As in Megatron-LM, a number N selects layers 0, N, 2N and so on.
std::vector<bool> expert_layers(const MoeFlags& m, int64_t layers) {
  const auto every = parse_number<int64_t>(m.layer_freq);
  if (!every) return layer_pattern("moe-layer-freq", m.layer_freq, layers, false);
  MG_CHECK(*every > 0, "--moe-layer-freq is {}; it must be positive", *every);
  std::vector<bool> chosen;
  for (int64_t i = 0; i < layers; ++i) chosen.push_back(i % *every == 0);
  return chosen;
}

namespace {

// Layers of attention and a feed-forward block.
void apply_layers(const ModelFlags& f, const nn::NormConfig& norm, DecoderValue& value) {
  const int64_t layers = required(f.num_layers, "num-layers");
  MG_CHECK(layers <= 1 << 16, "--num-layers is {}; it must lie in [1, {}]", layers, 1 << 16);
  value.layers.assign(static_cast<size_t>(layers), {.mixer = mixer_of(f, value.hidden_size),
                                                    .feed_forward = mlp_of(f, value.hidden_size),
                                                    .norm = norm});
}

}  // namespace

DecoderValue value_of(const ModelFlags& f, int64_t seq_length) {
  check_ranges(f);
  DecoderValue value;
  value.hidden_size = required(f.hidden_size, "hidden-size");
  value.vocab_size = f.vocab_size.value_or(0);
  value.max_position_embeddings = f.max_position_embeddings.value_or(seq_length);
  value.learned_positions = f.position_embedding == PositionEmbedding::learned_absolute;
  const nn::NormConfig norm{
      .kind = f.normalization, .epsilon = f.norm_epsilon, .one_plus = f.layernorm_1p};
  const std::optional<std::string> pattern = f.layer_pattern();
  if (pattern) apply_hybrid_pattern(f, *pattern, norm, value);
  else apply_layers(f, norm, value);
  value.final_norm = norm;
  if (rotates(f)) value.rotary["default"] = rotary_of(f);
  MG_CHECK(!f.moe.num_experts || (!f.heterogeneous_layers && !f.heterogeneous_layers_json),
           "--num-experts and --heterogeneous-layers-config-path are mutually exclusive");
  apply_layer_list(f, value);
  if (!pattern) apply_experts(f, value);
  value.router = f.moe.training();
  apply_patterns(f, value);
  value.untied = f.untie;
  if (f.encoder) make_encoder(f, value);
  if (f.encoder_decoder) make_encoder_decoder(f, value);
  else
    MG_CHECK(f.position_embedding != PositionEmbedding::relative,
             "--position-embedding-type relative is for encoder-decoders (--task span-corruption "
             "or seq2seq): use another");
  value.hidden_dropout = f.hidden_dropout.value_or(0.1);
  value.attention_dropout = f.attention_dropout.value_or(0.1);
  value.init_method_std = f.init_method_std;
  value.embedding_init_std = f.embedding_init_method_std;
  value.xavier_init = f.init_method_xavier_uniform;
  apply_mup(f, value);
  value.prediction = {.depths = f.mtp_num_layers.value_or(0),
                      .layer = value.layers.back(),
                      .loss_scale = f.mtp_loss_scaling_factor,
                      .detached = f.mtp_detach_heads};
  return value;
}

}  // namespace megatron::models
