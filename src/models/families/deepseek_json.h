// Common parts of the config.json of DeepSeek-V2 and its successors: latent attention, dense first
// layers, shared experts.
#pragma once

#include "models/families/experts_json.h"

namespace megatron::models {

// Reads everything but the router: read_common(), with latent attention in every layer, and
// `router`'s experts in the layers from first_k_dense_replace on. interleaved: the rotary key's
// elements are paired (2i, 2i + 1).
struct DeepseekForm {
  CommonForm common;
  kernels::RouterForm router;
  bool correction_bias = false;
  bool interleaved = true;
};
DecoderValue read_deepseek(const Json& config, const DeepseekForm& form);
// Returns the keys that read_deepseek() reads.
Json write_deepseek(const DecoderValue& value, const CommonForm& common);
FamilyTensors deepseek_tensors(const DecoderValue& value);

}  // namespace megatron::models
