// A family: how a config.json of Hugging Face's becomes a decoder's value and comes back, and what its
// tensors are called. One folder each; none has a line of forward code.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/json.h"
#include "models/decoder/value.h"
#include "models/families/tensor_map.h"
#include "models/model_flags.h"

namespace megatron::models {

// Keys as transformers 5 writes them (rope_parameters, dtype), or as versions before it (rope_theta,
// rope_scaling, torch_dtype). Both are read; what is read in a form is written in it.
enum class ConfigForm { transformers_5, older };

// True if a tensor of a published directory is a buffer that any family computes anyway, by its
// name: all of a module for rotary angles (rotary_emb.inv_freq), and masks (causal_mask).
bool is_computed_buffer(std::string_view name);

struct DecoderFamily {
  std::string_view name;  // model_type of its config.json
  // What a user trains and downloads under it: for the table of supported models.
  std::string_view models;
  // Throws Error naming the key and the value that is not supported. Sizes are checked later. The
  // config has a value for each key of `defaults`.
  DecoderValue (*read)(const Json& config);
  // The keys that transformers 5 writes, but for dtype. Of any value: where it cannot be said in this file,
  // read() gives another value or throws.
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
  // Flags, and the keys of the file that say the same where Llama's have other names. One that begins
  // another one's name comes after it.
  struct Key {
    std::string_view flag, key;
  };
  std::span<const Key> keys = {};
  // Keys that versions before transformers 5 call otherwise: `now` of what write() gives, once it is in their form.
  struct OlderKey {
    std::string_view now, before;
  };
  std::span<const OlderKey> older_keys = {};
  // Patterns (see matches()) for other buffers in published directories that are computed anyway,
  // by their names behind base_prefix. They are not read.
  std::span<const std::string_view> buffers = {};
  // Layers behind the last in published directories that predict tokens beyond the next one: dropped when read.
  int64_t prediction_layers = 0;
  // Prefix of all tensor names except the head's. Files that were saved from the model without its
  // head lack it.
  std::string_view base_prefix = "model.";
};

// In the order in which a family is looked for that can hold a value.
std::span<const DecoderFamily* const> families();
// Throws Error that lists those there are.
const DecoderFamily& family_named(std::string_view name);
// Of a value that flags describe: the first that can hold it, or could without dropout; the last one
// (megatron) holds any value.
const DecoderFamily& family_for(const DecoderValue& value);
// That of --model-family, where it is given. Throws Error where it cannot hold the value.
const DecoderFamily& family_to_save(const DecoderValue& value,
                                    const std::optional<std::string>& named);

// Sets each dropout to 0 that the flags do not set and that the family's config.json cannot hold.
void zero_default_dropouts(const DecoderFamily& family, const ModelFlags& flags,
                           DecoderValue& value);

// Checked. Throws Error naming the key and the value that is not supported.
DecoderValue read_config(const DecoderFamily& family, const Json& config);
ConfigForm form_of(const Json& config);
// Throws Error where the family cannot hold the value, naming what stands in the way.
Json write_config(const DecoderFamily& family, const DecoderValue& value, DType stored,
                  ConfigForm form);

// Why the family's config.json cannot hold the value, as a sentence: what would come back otherwise.
// Empty: it can.
std::string obstacle(const DecoderFamily& family, const DecoderValue& value);

}  // namespace megatron::models
