#include "models/absent_keys.h"

#include "models/families/config_json.h"

namespace megatron::models {

std::string_view absent_key(const Model& model, const Json& config, std::string_view tensor) {
  struct Part {
    std::string_view key, pattern;  // after the base model's prefix
  };
  constexpr Part kParts[] = {{"attention_bias", "layers.*.self_attn.q_proj.bias"},
                             {"attention_bias", "layers.*.self_attn.k_proj.bias"},
                             {"attention_bias", "layers.*.self_attn.v_proj.bias"},
                             {"attention_bias", "layers.*.self_attn.o_proj.bias"},
                             {"mlp_bias", "layers.*.mlp.gate_proj.bias"},
                             {"mlp_bias", "layers.*.mlp.up_proj.bias"},
                             {"mlp_bias", "layers.*.mlp.down_proj.bias"},
                             {"use_qk_norm", "layers.*.self_attn.q_norm.weight"},
                             {"use_qk_norm", "layers.*.self_attn.k_norm.weight"}};
  const DecoderFamily& family = family_named(model->family());
  if (!tensor.starts_with(family.base_prefix)) return {};
  tensor.remove_prefix(family.base_prefix.size());
  for (const Part& part : kParts)
    if (matches(part.pattern, tensor) && present(config, part.key) == nullptr &&
        Json::parse(family.defaults).contains(part.key))
      return part.key;
  return {};
}

}  // namespace megatron::models
