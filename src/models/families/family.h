// A model family: converts Hugging Face's config.json to a decoder's value and back, and names its
// tensors. Each family has its own folder, without any forward code.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/json.h"
#include "models/decoder/value.h"
#include "models/families/tensor_map.h"
#include "models/model_flags.h"

namespace megatron::models {

// Which keys config.json uses: those of transformers 5 (rope_parameters, dtype) or of earlier
// versions (rope_theta, rope_scaling, torch_dtype). Both are read, and a config is written with the
// keys with which it was read.
enum class ConfigForm { transformers_5, older };

// True if a tensor of a published directory is a buffer that any family computes anyway, by its
// name: all of a module for rotary angles (rotary_emb.inv_freq), and masks (causal_mask).
bool is_computed_buffer(std::string_view name);

struct DecoderFamily {
  std::string_view name;  // model_type of its config.json
  // Models that users know of this family, for the table of supported models.
  std::string_view models;
  // Throws Error naming the key and the value that is not supported. Sizes are checked later. The
  // config has a value for each key of `defaults`.
  DecoderValue (*read)(const Json& config);
  // Writes the keys of transformers 5, except dtype and model_type. Accepts any value: if this file
  // cannot represent it, read() returns another value or throws.
  Json (*write)(const DecoderValue& value);
  FamilyTensors (*tensors)(const DecoderValue& value);
  // JSON object with the values of keys that a config.json may leave out, from transformers' class
  // for the type. If it is empty, all keys that read() asks for must be there.
  std::string_view defaults = "{}";
  // Other names of keys; a value under such a name wins.
  struct Alias {
    std::string_view other, key;
  };
  std::span<const Alias> aliases = {};
  // Flags and the corresponding keys of the file, where these have other names than Llama's. A flag
  // that is a prefix of another one comes after it.
  struct Key {
    std::string_view flag, key;
  };
  std::span<const Key> keys = {};
  // Keys with a different name before transformers 5: renames `now` in the result of write(), after
  // its conversion to the older form.
  struct OlderKey {
    std::string_view now, before;
  };
  std::span<const OlderKey> older_keys = {};
  // Patterns (see matches()) for tensors in published directories that are not read, by their names
  // after base_prefix: other buffers that are computed anyway, and parts that the model leaves out.
  std::span<const std::string_view> buffers = {};
  // Number of layers after the last one in published directories that predict tokens beyond the
  // next one; dropped when read.
  int64_t prediction_layers = 0;
  // Class of its models that score texts, which replace the head by a tensor "score.weight" and
  // ignore factors and caps of logits; "": there is none.
  std::string_view score_class = "";
  // True for encoders, whose read() and write() also read and write the head that `architectures`
  // names.
  bool has_heads = false;
  // Makes the head of a model with scores, of a value without one: of each token, of answers
  // (span), or for all other `scored` of texts. Null: that of decoders, at the last token.
  void (*set_score_head)(DecoderValue& value, ScoredTokens scored) = nullptr;
  // Prefix of all tensor names except the head's. Files that were saved from the model without its
  // head lack it.
  std::string_view base_prefix = "model.";
};

// All families, in the order in which they are searched for one that can represent a value.
std::span<const DecoderFamily* const> families();
// Throws Error that lists the known families.
const DecoderFamily& family_named(std::string_view name);
// First family that can hold the value that flags describe, or could without dropout; the last one
// (megatron) holds any value.
const DecoderFamily& family_for(const DecoderValue& value);
// Returns the family given by --model-family, if any. Throws Error if it cannot represent the
// value.
const DecoderFamily& family_to_save(const DecoderValue& value,
                                    const std::optional<std::string>& named);

// Sets each dropout to 0 that the flags do not set and that the family's config.json cannot
// represent.
void zero_default_dropouts(const DecoderFamily& family, const ModelFlags& flags,
                           DecoderValue& value);

// Returns a checked value. Throws Error naming the key and the unsupported value.
DecoderValue read_config(const DecoderFamily& family, const Json& config);
ConfigForm form_of(const Json& config);
// Throws Error if the family cannot represent the value, naming the obstacle.
Json write_config(const DecoderFamily& family, const DecoderValue& value, DType stored,
                  ConfigForm form);

// Returns a sentence that says why the family's config.json cannot represent the value: what would
// differ when it is read back. Empty if it can.
std::string obstacle(const DecoderFamily& family, const DecoderValue& value);

}  // namespace megatron::models
