// Common parts of the config.json of several families: values by their keys, activations and types
// by their names, Llama's keys. Rotary positions are in rotary_json.h.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "kernels/activation.h"
#include "models/decoder/value.h"
#include "models/families/family.h"

namespace megatron::models {

// Returns the value of a key, or a null pointer if it is absent or null.
const Json* present(const Json& config, std::string_view key);
// Returns the value of a key, or `otherwise` if the key is absent or null. Throws Error naming the
// key and its value if it has another type, or if there is neither. Results of integer() and
// positive() are above 0.
int64_t integer(const Json& config, std::string_view key, std::optional<int64_t> otherwise = {});
int64_t count(const Json& config, std::string_view key);  // zero or more
// A number of layers: integer() up to kMaxLayers.
int64_t layer_count(const Json& config, std::string_view key,
                    std::optional<int64_t> otherwise = {});
double number(const Json& config, std::string_view key, std::optional<double> otherwise = {});
double positive(const Json& config, std::string_view key, std::optional<double> otherwise = {});
bool boolean(const Json& config, std::string_view key, std::optional<bool> otherwise = {});
std::string text(const Json& config, std::string_view key,
                 std::optional<std::string> otherwise = {});
// Throws Error if the key is present with another value.
void refuse_unless(const Json& config, std::string_view key, const Json& value);

kernels::Activation activation(const Json& config, std::string_view key);
std::string activation_name(kernels::Activation activation);
std::string stored_name(DType type);  // "bfloat16"

// A family's spelling of the keys in Llama's config.json, and its differences from Llama's decoder,
// which has RMSNorm, a gated MLP, no biases and one rotary table "default" that rotates whole
// heads.
struct CommonForm {
  std::string_view activation_key = "hidden_act", epsilon_key = "rms_norm_eps";
  nn::Normalization norm = nn::Normalization::rms_norm;
  bool gated = true;
  bool partial_rotary = false;  // rotates partial_rotary_factor of each head's dimensions
  bool attention_bias = false;  // attention_bias: of queries, keys, values and output
  bool mlp_bias = false;        // mlp_bias
  nn::QkNorm qk_norm = nn::QkNorm::none;
};
DecoderValue read_common(const Json& config, const CommonForm& form = {});
// Returns the keys that read_common() reads; keys of layers have the first layer's values.
Json write_common(const DecoderValue& value, const CommonForm& form = {});

// True for each layer that layer_types lists as `kind`; the others have full attention. Empty: the
// key is absent.
std::vector<bool> listed_layers(const Json& config, int64_t layers, std::string_view kind);
// Sets sliding_window in the layers that layer_types lists as sliding_attention, or, if that key is
// absent, in those for which `sliding` is true. Throws Error if there is such a layer and no
// sliding_window.
using LayerTest = std::function<bool(int64_t layer)>;
void read_windows(const Json& config, DecoderValue& value, const LayerTest& sliding);
// The same for families in which use_sliding_window turns sliding_window on.
void read_optional_windows(const Json& config, DecoderValue& value, const LayerTest& sliding);
// The same, with max_window_layers, from which on layers have a window where layer_types is absent.
void read_late_windows(const Json& config, DecoderValue& value);
void write_late_windows(const DecoderValue& value, Json& config);
// Sets sliding_window in every layer, or in none, and ignores layer_types.
void read_window(const Json& config, DecoderValue& value);
void write_windows(const DecoderValue& value, Json& config);  // layer_types, sliding_window
int64_t window_of(const DecoderValue& value);    // of the first layer that has one; 0 if none has
Json sliding_window(const DecoderValue& value);  // the same; null if no layer has one
// The first layer with a window; the number of layers if none has one.
int64_t first_window(const DecoderValue& value);

// Sets the scale of attention scores. The scale that follows from the head size is kept as the
// default, so that a file that states it gives the same value as one that does not.
void set_score_scale(nn::AttentionConfig& attention, double scale);

// Common parts of Gemma 2 and 3: norms before and after with 1 + w, query_pre_attn_scalar, scaled
// embeddings.
void read_gemma(const Json& config, DecoderValue& value);
void write_gemma(const DecoderValue& value, Json& config);

// The labels, padding and problem_type of a model that scores texts.
void read_score_head(const Json& config, DecoderValue& value);
void write_score_head(const DecoderValue& value, Json& config);

// Returns Llama's tensor names; with other names of the layers' norms, e.g. those of Gemma 2 and 3.
FamilyTensors llama_tensors(const DecoderValue& value);
FamilyTensors llama_tensors(const DecoderValue& value, std::vector<TensorName> layer_norms);
FamilyTensors gemma_tensors(const DecoderValue& value);

}  // namespace megatron::models
