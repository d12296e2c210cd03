// What the config.json of several families have in common: values by their keys, activations and types by
// their names, rotary positions in both forms.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "kernels/activation.h"
#include "models/decoder/value.h"
#include "models/families/family.h"

namespace megatron::models {

// The value of a key; null where it is absent or null.
const Json* present(const Json& config, std::string_view key);
// A positive number. Absent: `otherwise`; 0 then stands for one that depends on other keys. These
// throw Error naming the key and the value.
int64_t integer(const Json& config, std::string_view key, std::optional<int64_t> otherwise = {});
double number(const Json& config, std::string_view key, double otherwise);
bool boolean(const Json& config, std::string_view key, bool otherwise);
std::string text(const Json& config, std::string_view key, std::string otherwise);
// Throws Error where the key is there with another value.
void refuse_unless(const Json& config, std::string_view key, const Json& value);

kernels::Activation activation(const Json& config, std::string_view key,
                               std::string_view otherwise);
std::string activation_name(kernels::Activation activation);
std::string stored_name(DType type);  // "bfloat16"

// What the keys of Llama's config.json say, which most families share: sizes, heads, RMSNorm, a gated
// MLP without biases, one rotary table "default" and, of `otherwise`, what a family has where a key is
// absent.
struct CommonDefaults {
  double norm_epsilon = 1e-6, rope_theta = 10000, rotary_fraction = 1;
  int64_t kv_heads = 0;   // 0: as many as heads
  int64_t head_size = 0;  // 0: hidden size / heads
  bool tied = false;
  std::string_view activation = "silu";
  std::string_view activation_key = "hidden_act", epsilon_key = "rms_norm_eps";
  nn::Normalization norm = nn::Normalization::rms_norm;
  bool gated = true;
};
DecoderValue read_common(const Json& config, const CommonDefaults& otherwise = {});
// The keys that read_common() reads, but for rope_parameters: of the first layer.
Json write_common(const DecoderValue& value, const CommonDefaults& otherwise = {});
// A rotary config from rope_parameters, or rope_theta and rope_scaling. max_positions may grow: dynamic scaling
// extends it.
nn::RotaryConfig read_rotary(const Json& config, const CommonDefaults& otherwise,
                             int64_t& max_positions);
// The same of one object like rope_parameters.
nn::RotaryConfig read_rope_parameters(const Json& config, const Json& parameters,
                                      const CommonDefaults& otherwise, int64_t& max_positions);
// fraction: what the family has where partial_rotary_factor is absent.
Json write_rope_parameters(const nn::RotaryConfig& rotary, double fraction = 1);

// sliding_window and layer_types ("full_attention", "sliding_attention") of the layers; `sliding` says by
// layer index what holds where layer_types is absent.
void read_windows(const Json& config, DecoderValue& value,
                  bool (*sliding)(const Json&, int64_t layer));
Json layer_types(const DecoderValue& value);
int64_t window_of(const DecoderValue& value);  // of the first layer that has one; 0: none has
int64_t first_window(
    const DecoderValue& value);  // the first layer with a window; none: their number

// Of attention scores. That of the head size is left at its default, so that a file that states it gives the
// same value as one that does not.
void set_score_scale(nn::AttentionConfig& attention, double scale);

// What Gemma 2 and 3 share: norms before and after with 1 + w, query_pre_attn_scalar, scaled embeddings,
// attention_bias.
void read_gemma(const Json& config, DecoderValue& value);
void write_gemma(const DecoderValue& value, Json& config);

// A sequence classifier or a reward model: architectures, num_labels (id2label), pad_token_id.
void read_score_head(const Json& config, DecoderValue& value);
// architectures: <name>ForCausalLM, or ForSequenceClassification with its labels.
void write_score_head(const DecoderValue& value, const std::string& name, Json& config);

// Tensors named as Llama's; norms is added to them.
FamilyTensors llama_tensors(const DecoderValue& value, std::vector<TensorName> layer_norms);

}  // namespace megatron::models
