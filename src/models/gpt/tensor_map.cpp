#include "models/gpt/tensor_map.h"

#include "base/error.h"

namespace megatron::models {
namespace {

using parallel::Part;

struct Names {
  std::string layer;  // number, "" outside of layers
  std::string rest;   // "attention.qkv.weight"
};

Names split_name(const std::string& name) {
  if (!name.starts_with("layers.")) return {"", name};
  const size_t dot = name.find('.', 7);
  return {name.substr(7, dot - 7), name.substr(dot + 1)};
}

std::string replaced_suffix(const std::string& rest, std::string_view ours,
                            std::string_view theirs) {
  MG_ASSERT(rest.starts_with(ours));
  return std::string(theirs) + rest.substr(ours.size());
}

// gpt2: one tensor a parameter; linear weights are Conv1D, stored [in, out].
std::string gpt2_name(const Names& n) {
  if (n.layer.empty()) {
    if (n.rest == "embedding.weight") return "transformer.wte.weight";
    if (n.rest == "position_embedding.weight") return "transformer.wpe.weight";
    if (n.rest == "output.weight") return "lm_head.weight";
    return replaced_suffix(n.rest, "final_norm", "transformer.ln_f");
  }
  const std::string h = "transformer.h." + n.layer + ".";
  for (const auto& [ours, theirs] : {std::pair{"attention_norm", "ln_1"},
                                     {"attention.qkv", "attn.c_attn"},
                                     {"attention.output", "attn.c_proj"},
                                     {"mlp_norm", "ln_2"},
                                     {"mlp.up", "mlp.c_fc"},
                                     {"mlp.down", "mlp.c_proj"}}) {
    if (n.rest.starts_with(ours)) return h + replaced_suffix(n.rest, ours, theirs);
  }
  throw InternalError(fmt::format("the parameter '{}' has no Hugging Face name", n.rest));
}

std::vector<Part> whole(const std::string& name, const Shape& shape, bool transposed) {
  return {Part{.name = name,
               .global = shape,
               .axis = 0,
               .slices = {{0, 0, shape[0]}},
               .transposed = transposed}};
}

// Several tensors stacked along dim 0.
std::vector<Part> stacked(const Shape& shape,
                          const std::vector<std::pair<std::string, int64_t>>& names_and_rows) {
  std::vector<Part> parts;
  int64_t begin = 0;
  for (const auto& [name, rows] : names_and_rows) {
    Shape global = shape;
    global.set(0, rows);
    parts.push_back({.name = name, .global = global, .axis = 0, .slices = {{0, begin, rows}}});
    begin += rows;
  }
  MG_ASSERT(begin == shape[0]);
  return parts;
}

std::vector<Part> llama_parts(const GptConfig& c, const Names& n, const Shape& shape) {
  if (n.layer.empty()) {
    if (n.rest == "embedding.weight") return whole("model.embed_tokens.weight", shape, false);
    if (n.rest == "output.weight") return whole("lm_head.weight", shape, false);
    return whole(replaced_suffix(n.rest, "final_norm", "model.norm"), shape, false);
  }
  const std::string h = "model.layers." + n.layer + ".";
  const std::string kind = n.rest.substr(n.rest.rfind('.'));  // ".weight", ".bias"
  if (n.rest.starts_with("attention.qkv")) {
    const int64_t q = c.num_attention_heads * c.kv_channels, k = c.num_query_groups * c.kv_channels;
    return stacked(shape, {{h + "self_attn.q_proj" + kind, q},
                           {h + "self_attn.k_proj" + kind, k},
                           {h + "self_attn.v_proj" + kind, k}});
  }
  if (n.rest.starts_with("mlp.up") && !c.gated) {
    return whole(h + "mlp.up_proj" + kind, shape, false);
  }
  if (n.rest.starts_with("mlp.up")) {
    return stacked(shape, {{h + "mlp.gate_proj" + kind, c.ffn_hidden_size},
                           {h + "mlp.up_proj" + kind, c.ffn_hidden_size}});
  }
  for (const auto& [ours, theirs] : {std::pair{"attention_norm", "input_layernorm"},
                                     {"attention.output", "self_attn.o_proj"},
                                     {"mlp_norm", "post_attention_layernorm"},
                                     {"mlp.down", "mlp.down_proj"}}) {
    if (n.rest.starts_with(ours))
      return whole(h + replaced_suffix(n.rest, ours, theirs), shape, false);
  }
  throw InternalError(fmt::format("the parameter '{}' has no Hugging Face name", n.rest));
}

}  // namespace

parallel::Placement placement_of(const GptConfig& config, const std::string& name,
                                 const Shape& shape) {
  const Names n = split_name(name);
  parallel::Placement placement;
  if (config.position_embedding == PositionEmbedding::rope) {
    placement.parts = llama_parts(config, n, shape);
  } else {
    const bool conv1d = !n.layer.empty() && shape.rank() == 2;
    placement.parts = whole(gpt2_name(n), shape, conv1d);
  }
  return placement;
}

}  // namespace megatron::models
