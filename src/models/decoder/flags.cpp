#include "models/decoder/flags.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "models/decoder/heterogeneous.h"
#include "models/layer_pattern.h"

namespace megatron::models {
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 28;  // DecoderValue::check() has closer limits

int64_t required(const std::optional<int64_t>& value, std::string_view flag) {
  MG_CHECK(value.has_value(),
           "the model's shape needs --{}; or give --model DIR with a Hugging Face config.json",
           flag);
  MG_CHECK(*value > 0 && *value <= kMaxSize, "--{} is {}; it must lie in [1, {}]", flag, *value,
           kMaxSize);
  return *value;
}

int64_t sized(const std::optional<int64_t>& value, int64_t otherwise, std::string_view flag) {
  return value ? required(value, flag) : otherwise;
}

bool rotates(const ModelFlags& f) {
  return f.position_embedding == PositionEmbedding::rope ||
         f.position_embedding == PositionEmbedding::yarn;
}

// "127,0": so many tokens before a token and after it; -1: all of them.
int64_t window_of_flag(const std::string& text) {
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
  MG_CHECK(sides[1] <= 0, "--window-size is '{}', but a decoder sees no later tokens; use {},0",
           text, sides[0]);
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

// As Megatron-LM: the concentration of YaRN by mscale and mscale_all_dim.
double concentration(double factor, double mscale, double mscale_all_dim) {
  const auto scale = [factor](double m) {
    return factor <= 1 ? 1 : 0.1 * m * std::log(factor) + 1;
  };
  return scale(mscale) / scale(mscale_all_dim);
}

nn::RotaryConfig rotary_of(const ModelFlags& f) {
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

// Which layers have a window, and which no rotation.
void apply_patterns(const ModelFlags& f, DecoderValue& value) {
  const auto pattern = [&](std::string_view flag, const std::optional<std::string>& text,
                           bool every_nth) {
    return text ? layer_pattern(flag, *text, value.num_layers(), every_nth) : std::vector<bool>();
  };
  const std::vector<bool> windowed =
                              pattern("window-attn-skip-freq", f.window_attn_skip_freq, false),
                          unrotated = pattern("no-rope-freq", f.no_rope_freq, true);
  const int64_t window = f.window_size ? window_of_flag(*f.window_size) : 0;
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
  a.kv_heads = f.group_query_attention ? required(f.num_query_groups, "num-query-groups") : a.heads;
  MG_CHECK(f.kv_channels || hidden % a.heads == 0,
           "--hidden-size {} is not a multiple of --num-attention-heads {}; change one of them "
           "or give --kv-channels",
           hidden, a.heads);
  a.head_size = sized(f.kv_channels, hidden / a.heads, "kv-channels");
  if (rotates(f)) a.rotary = "default";
  a.qk_norm = qk_norm_of(f);
  a.sinks = sinks_of(f.softmax_type);
  a.output_gate = f.attention_output_gate;
  return a;
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
  return {.ffn = sized(f.ffn_hidden_size, usual, "ffn-hidden-size"),
          .activation = activation_of(f),
          .gated = f.swiglu || f.quick_geglu,
          .bias = f.add_bias_linear,
          .clamp = f.activation_clamp.value_or(0),
          .up_offset = f.glu_linear_offset};
}

// What chooses experts by more than their scores.
void check_balancing(const MoeFlags& m, const nn::RouterTraining& training, int64_t experts) {
  const bool softmax = m.score == kernels::RouterScore::softmax;
  MG_CHECK(!softmax || !m.enable_expert_bias,
           "--moe-router-enable-expert-bias needs --moe-router-score-function sigmoid or "
           "sqrtsoftplus");
  MG_CHECK(!training.quantile || !m.enable_expert_bias,
           "--moe-router-load-balancing-type quantile_balancing has a bias of its own; leave out "
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
           "--moe-router-load-balancing-type sinkhorn weighs {} experts by a softmax; leave out "
           "--moe-router-score-function",
           m.topk);
}

void apply_experts(const ModelFlags& f, DecoderValue& value) {
  if (!f.moe.num_experts) return;
  const nn::MoeConfig moe = moe_of(f.moe, *value.layers[0].mlp());
  const std::vector<bool> chosen = expert_layers(f.moe, value.num_layers());
  for (size_t i = 0; i < chosen.size(); ++i)
    if (chosen[i]) value.layers[i].feed_forward = moe;
  MG_CHECK(
      value.first_moe() != nullptr,
      "--moe-layer-freq is '{}', which gives none of the {} layers experts; change it, or leave "
      "--num-experts out",
      f.moe.layer_freq, value.num_layers());
}

// Yang et al. 2022, as Megatron-LM reads it: by the ratio of this model's width to that of the one whose
// settings it takes over.
void apply_mup(const ModelFlags& f, DecoderValue& value) {
  if (!f.use_mup) return;
  const int64_t base = sized(f.mup_base_hidden_size, value.hidden_size, "mup-base-hidden-size"),
                base_head = sized(f.mup_base_head_dim, 1, "mup-base-head-dim");
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
                    .latent = m.latent_size ? required(m.latent_size, "moe-latent-size") : 0,
                    .shared_ffn = m.shared_ffn.value_or(0),
                    .shared_gate = m.shared_expert_gate};
  moe.expert.ffn = sized(m.ffn_hidden_size, mlp.ffn, "moe-ffn-hidden-size");
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
           "--moe-router-num-groups and --moe-router-group-topk go together; give both");
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

// As Megatron-LM: with a number N, layers 0, N, 2N and so on.
std::vector<bool> expert_layers(const MoeFlags& m, int64_t layers) {
  int64_t every = 0;
  const char* const last = m.layer_freq.data() + m.layer_freq.size();
  const auto [end, error] = std::from_chars(m.layer_freq.data(), last, every);
  if (error != std::errc() || end != last)
    return layer_pattern("moe-layer-freq", m.layer_freq, layers, false);
  MG_CHECK(every > 0, "--moe-layer-freq is {}; it must be positive", every);
  std::vector<bool> chosen;
  for (int64_t i = 0; i < layers; ++i) chosen.push_back(i % every == 0);
  return chosen;
}

DecoderValue value_of(const ModelFlags& f, int64_t seq_length) {
  DecoderValue value;
  const int64_t layers = required(f.num_layers, "num-layers");
  MG_CHECK(layers <= 1 << 16, "--num-layers is {}; it must lie in [1, {}]", layers, 1 << 16);
  value.hidden_size = required(f.hidden_size, "hidden-size");
  value.vocab_size = f.vocab_size.value_or(0);
  value.max_position_embeddings = f.max_position_embeddings.value_or(seq_length);
  value.learned_positions = f.position_embedding == PositionEmbedding::learned_absolute;
  const nn::NormConfig norm{
      .kind = f.normalization, .epsilon = f.norm_epsilon, .one_plus = f.layernorm_1p};
  value.layers.assign(static_cast<size_t>(layers), {.mixer = attention_of(f, value.hidden_size),
                                                    .feed_forward = mlp_of(f, value.hidden_size),
                                                    .norm = norm});
  value.final_norm = norm;
  if (rotates(f)) value.rotary["default"] = rotary_of(f);
  MG_CHECK(!f.moe.num_experts || (!f.heterogeneous_layers && !f.heterogeneous_layers_json),
           "--num-experts and --heterogeneous-layers-config-path are mutually exclusive");
  apply_layer_list(f, value);
  apply_experts(f, value);
  value.router = f.moe.training();
  apply_patterns(f, value);
  value.untied = f.untie;
  value.hidden_dropout = f.hidden_dropout.value_or(0.1);
  value.attention_dropout = f.attention_dropout.value_or(0.1);
  value.init_method_std = f.init_method_std;
  value.embedding_init_std = f.embedding_init_method_std;
  value.xavier_init = f.init_method_xavier_uniform;
  apply_mup(f, value);
  return value;
}

namespace {

void set_rotary_flags(const nn::RotaryConfig& r, ModelFlags& f) {
  f.position_embedding =
      r.scaling == nn::RopeScaling::yarn ? PositionEmbedding::yarn : PositionEmbedding::rope;
  f.rotary_base = r.base;
  f.rotary_interleaved = r.interleaved;
  f.rotary_percent = r.fraction;
  if (r.scaling == nn::RopeScaling::linear) f.rotary_interpolation = r.factor;
  if (r.scaling == nn::RopeScaling::llama3) {
    f.use_rope_scaling = true;
    f.rope_scaling_factor = r.factor;
  }
  if (r.scaling != nn::RopeScaling::yarn) return;
  f.rotary_scaling_factor = r.factor;
  f.yarn_original_positions = r.original_positions;
  f.yarn_beta_fast = r.beta_fast;
  f.yarn_beta_slow = r.beta_slow;
  f.yarn_round_to_int = r.truncate;
}

// Lists of a number a layer, where layers differ.
void set_pattern_flags(const DecoderValue& value, ModelFlags& f) {
  std::string windows, unrotated;
  int64_t window = 0;
  bool all_windowed = true, all_rotated = true;
  for (const LayerValue& layer : value.layers) {
    const nn::AttentionConfig* a = layer.attention();
    const bool has_window = a != nullptr && a->window > 0,
               rotated = a == nullptr || !a->rotary.empty();
    if (has_window) window = a->window;
    all_windowed &= has_window;
    all_rotated &= rotated;
    windows += has_window ? ",1" : ",0";
    unrotated += rotated ? ",0" : ",1";
  }
  const auto list = [](const std::string& text) { return "[" + text.substr(1) + "]"; };
  if (window > 0) {
    f.window_size = std::to_string(window - 1) + ",0";
    if (!all_windowed) f.window_attn_skip_freq = list(windows);
  }
  if (!value.rotary.empty() && !all_rotated) f.no_rope_freq = list(unrotated);
}

void set_expert_flags(const DecoderValue& value, ModelFlags& f) {
  const nn::MoeConfig* moe = value.first_moe();
  if (moe == nullptr) return;
  MoeFlags& m = f.moe;
  m.num_experts = moe->experts;
  m.topk = moe->choices;
  m.ffn_hidden_size = moe->expert.ffn;
  m.score = moe->router.score;
  m.pre_softmax = moe->router.softmax_first;
  m.enable_expert_bias = moe->correction_bias && !value.router.quantile;
  m.apply_probs_on_input = moe->weights_on_input;
  m.shared_expert_gate = moe->shared_gate;
  if (moe->router.scale != 1) m.topk_scaling_factor = moe->router.scale;
  if (moe->latent > 0) m.latent_size = moe->latent;
  if (moe->shared_ffn > 0) m.shared_ffn = moe->shared_ffn;
  if (moe->router.groups > 1) {
    m.num_groups = moe->router.groups;
    m.group_topk = moe->router.chosen_groups;
  }
  std::string list;
  for (const LayerValue& layer : value.layers) list += layer.moe() != nullptr ? ",1" : ",0";
  if (list.find('0') != list.npos) m.layer_freq = "[" + list.substr(1) + "]";
  if (value.router.z_loss != 0) m.z_loss_coeff = value.router.z_loss;
  m.bias_update_rate = value.router.bias_update_rate;
  if (value.router.capacity_factor > 0) m.capacity_factor = value.router.capacity_factor;
  if (value.router.rank_capacity_factor > 0)
    m.rank_capacity_factor = value.router.rank_capacity_factor;
  m.drop_policy = value.router.kept;
  m.pad_to_capacity = value.router.padded;
  m.capacity_of_sequence = value.router.capacity_of_sequence;
  m.quantile_ema = value.router.quantile_ema;
  m.double_logits = value.router.double_logits;
  if (value.router.input_jitter != 0) m.input_jitter = value.router.input_jitter;
  if (value.router.logits_bias != 0) m.force_biased = value.router.logits_bias;
  m.force_load_balancing = value.router.random_logits;
  m.load_balancing_type.clear();
  m.aux_loss_coeff.clear();
  const auto add_loss = [&](const char* type, double coefficient) {
    m.load_balancing_type.emplace_back(type);
    m.aux_loss_coeff.push_back(fmt::format("{}", coefficient));
  };
  if (value.router.sinkhorn || value.router.quantile)
    return add_loss(value.router.sinkhorn ? "sinkhorn" : "quantile_balancing", 0);
  if (value.router.aux_loss != 0 ||
      (value.router.sequence_aux_loss == 0 && value.router.global_aux_loss == 0))
    add_loss("aux_loss", value.router.aux_loss);
  if (value.router.sequence_aux_loss != 0) add_loss("seq_aux_loss", value.router.sequence_aux_loss);
  if (value.router.global_aux_loss != 0) add_loss("global_aux_loss", value.router.global_aux_loss);
}

}  // namespace

ModelFlags flags_of(const DecoderValue& value) {
  const nn::AttentionConfig* attention = value.first_attention();
  const nn::MlpConfig* mlp = value.first_mlp();
  const nn::AttentionConfig a = attention == nullptr
                                    ? nn::AttentionConfig{.heads = 1, .kv_heads = 1, .head_size = 1}
                                    : *attention;
  const nn::MoeConfig* moe = value.first_moe();
  const nn::MlpConfig m = mlp != nullptr   ? *mlp
                          : moe != nullptr ? moe->expert
                                           : nn::MlpConfig{.ffn = 1};
  const nn::NormConfig& norm = value.layers.at(0).norm;
  ModelFlags f;
  f.num_layers = value.num_layers();
  f.hidden_size = value.hidden_size;
  f.num_attention_heads = a.heads;
  f.ffn_hidden_size = m.ffn;
  f.kv_channels = a.head_size;
  f.max_position_embeddings = value.max_position_embeddings;
  f.vocab_size = value.vocab_size;
  f.group_query_attention = a.kv_heads != a.heads;
  if (f.group_query_attention) f.num_query_groups = a.kv_heads;
  if (const auto rotary = value.rotary.find(a.rotary); rotary != value.rotary.end())
    set_rotary_flags(rotary->second, f);
  else
    f.position_embedding =
        value.learned_positions ? PositionEmbedding::learned_absolute : PositionEmbedding::none;
  set_pattern_flags(value, f);
  set_expert_flags(value, f);
  f.normalization = norm.kind;
  f.norm_epsilon = norm.epsilon;
  f.layernorm_1p = norm.one_plus;
  f.qk_layernorm = a.qk_norm == nn::QkNorm::head;
  f.qk_l2_norm = a.qk_norm == nn::QkNorm::l2;
  f.attention_output_gate = a.output_gate;
  f.softmax_type = a.sinks == nn::Sinks::zero      ? SoftmaxType::off_by_one
                   : a.sinks == nn::Sinks::learned ? SoftmaxType::learnable
                                                   : SoftmaxType::vanilla;
  f.squared_relu = m.activation == kernels::Activation::squared_relu;
  f.quick_geglu = m.activation == kernels::Activation::quick_gelu && m.gated;
  f.glu_linear_offset = m.up_offset;
  if (m.clamp > 0) f.activation_clamp = m.clamp;
  f.swiglu = m.gated && !f.quick_geglu;
  f.add_bias_linear = m.bias;
  f.add_qkv_bias = a.qkv_bias && !m.bias;
  f.untie = value.untied;
  f.hidden_dropout = value.hidden_dropout;
  f.attention_dropout = value.attention_dropout;
  f.init_method_std = value.init_method_std;
  f.embedding_init_method_std = value.embedding_init_std;
  f.init_method_xavier_uniform = value.xavier_init;
  if (value.width_multiplier != 1) {
    f.use_mup = true;
    f.mup_base_hidden_size =
        std::llround(static_cast<double>(value.hidden_size) / value.width_multiplier);
    f.mup_embedding_mult = value.embedding_scale;
    f.mup_output_mult = value.logits_scale;
  }
  f.bias_gelu_fusion = m.activation != kernels::Activation::gelu_erf;
  return f;
}

}  // namespace megatron::models
