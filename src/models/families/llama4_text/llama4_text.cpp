// The text model of Llama 4 (Meta 2025): attention in chunks, interleaved with full-attention
// layers that have no positions but a temperature; experts whose input is multiplied by their
// weight, plus a shared one.
#include <algorithm>

#include "base/error.h"
#include "models/families/all.h"
#include "models/families/experts_json.h"

namespace megatron::models {
namespace llama4_text {

constexpr std::string_view kDefaults = R"({
  "vocab_size": 202048, "hidden_size": 5120, "intermediate_size": 8192,
  "intermediate_size_mlp": 16384, "num_hidden_layers": 48, "num_attention_heads": 40,
  "num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu",
  "max_position_embeddings": 131072, "initializer_range": 0.02, "rms_norm_eps": 1e-5,
  "tie_word_embeddings": false, "attention_dropout": 0.0, "num_experts_per_tok": 1,
  "num_local_experts": 16, "interleave_moe_layer_step": 1, "use_qk_norm": true,
  "output_router_logits": false, "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0,
  "rope_theta": 500000.0, "no_rope_layer_interval": 4, "attention_chunk_size": 8192,
  "attn_temperature_tuning": true, "floor_scale": 8192, "attn_scale": 0.1,
  "attention_bias": false})";

constexpr double kAttnScale = 0.1;
constexpr int64_t kFloorScale = 8192;

constexpr CommonForm kForm{.attention_bias = true};

// Returns the integers of a list with one entry per layer; empty if the key is absent.
std::vector<int64_t> integers(const Json& j, std::string_view key) {
  std::vector<int64_t> numbers;
  const Json* list = present(j, key);
  if (list == nullptr) return numbers;
  MG_CHECK(list->is_array() && std::ranges::all_of(list->as_array(), &Json::is_integer),
           "config.json has {} = {}; it must be a list of integers", key, list->dump());
  for (const Json& number : list->as_array()) numbers.push_back(number.as_integer());
  return numbers;
}

void read_attention(const Json& j, DecoderValue& value) {
  const int64_t interval = integer(j, "no_rope_layer_interval");
  const bool has_chunks = present(j, "attention_chunk_size") != nullptr;
  const std::vector<bool> chunked = listed_layers(j, value.num_layers(), "chunked_attention");
  // 1: the layer rotates positions
  const std::vector<int64_t> rotated = integers(j, "no_rope_layers");
  MG_CHECK(rotated.empty() || std::ssize(rotated) == value.num_layers(),
           "config.json has num_hidden_layers = {}, but no_rope_layers has {} numbers",
           value.num_layers(), rotated.size());
  const bool norm = boolean(j, "use_qk_norm"), tuned = boolean(j, "attn_temperature_tuning");
  const double scale = tuned ? number(j, "attn_scale") : 0;
  for (int64_t i = 0; i < value.num_layers(); ++i) {
    nn::AttentionConfig& a = *value.layers[static_cast<size_t>(i)].attention();
    const bool turns =
        rotated.empty() ? (i + 1) % interval != 0 : rotated[static_cast<size_t>(i)] != 0;
    if (chunked.empty() ? turns && has_chunks : chunked[static_cast<size_t>(i)])
      a.chunk = integer(j, "attention_chunk_size");
    if (turns) {
      if (norm) a.qk_norm = nn::QkNorm::l2;
      continue;
    }
    a.rotary.clear();
    if (scale != 0) a.temperature = {.scale = scale, .step = integer(j, "floor_scale")};
  }
  value.rotary.at("default").interleaved = true;
}

DecoderValue read(const Json& j) {
  refuse_unless(j, "router_jitter_noise", 0.0);
  refuse_unless(j, "num_experts_per_tok", 1);
  DecoderValue value = read_common(j, kForm);
  read_aux_loss(j, value);
  read_attention(j, value);
  nn::MoeConfig experts{.experts = integer(j, "num_local_experts"),
                        .choices = integer(j, "num_experts_per_tok"),
                        .router = {.score = kernels::RouterScore::sigmoid},
                        .weights_on_input = true,
                        .expert = *value.layers[0].mlp()};
  experts.shared_ffn = experts.expert.ffn;
  const std::vector<int64_t> listed = integers(j, "moe_layers");
  const int64_t step = integer(j, "interleave_moe_layer_step");
  for (LayerValue& layer : value.layers) layer.mlp()->ffn = integer(j, "intermediate_size_mlp");
  set_experts(value, experts, [&](int64_t layer) {
    if (present(j, "moe_layers") == nullptr) return (layer + 1) % step == 0;
    return std::ranges::find(listed, layer) != listed.end();
  });
  return value;
}

void write_attention(const DecoderValue& value, Json& j) {
  Json::Array rotated, types;
  nn::Temperature temperature;
  Json chunk;
  for (const LayerValue& layer : value.layers) {
    MG_CHECK(layer.attention() != nullptr,
             "every layer has attention, and one of this model's none");
    const nn::AttentionConfig& a = *layer.attention();
    if (a.chunk > 0) chunk = a.chunk;
    rotated.emplace_back(a.rotary.empty() ? 0 : 1);
    types.emplace_back(a.chunk > 0 ? "chunked_attention" : "full_attention");
    if (a.temperature.scale != 0) temperature = a.temperature;
  }
  const nn::AttentionConfig& first = *value.first_attention();
  j.set("attention_chunk_size", chunk);
  const bool tuned = temperature.scale != 0;
  j.set("attn_scale", tuned ? temperature.scale : kAttnScale);
  j.set("attn_temperature_tuning", tuned);
  j.set("floor_scale", tuned ? temperature.step : kFloorScale);
  j.set("layer_types", std::move(types));
  j.set("no_rope_layer_interval", 4);
  j.set("no_rope_layers", std::move(rotated));
  j.set("use_qk_norm", first.qk_norm == nn::QkNorm::l2);
}

Json write(const DecoderValue& value) {
  Json j = write_common_of_experts(value, kForm);
  const nn::MoeConfig& moe = *value.first_moe();
  Json::Array sparse;
  for (int64_t i = 0; i < value.num_layers(); ++i)
    if (value.layers[static_cast<size_t>(i)].moe() != nullptr) sparse.emplace_back(i);
  const nn::MlpConfig* dense = value.first_mlp();
  const int64_t first = sparse[0].as_integer();
  j.set("architectures", Json::Array{"Llama4ForCausalLM"});
  j.set("interleave_moe_layer_step", first + 1);
  j.set("intermediate_size", moe.expert.ffn);
  j.set("intermediate_size_mlp", dense == nullptr ? 16384 : dense->ffn);
  j.set("moe_layers", std::move(sparse));
  j.set("num_experts_per_tok", moe.choices);
  j.set("num_local_experts", moe.experts);
  j.set("router_jitter_noise", 0.0);
  write_attention(value, j);
  write_aux_loss(value, j);
  return j;
}

FamilyTensors tensors(const DecoderValue& value) {
  FamilyTensors map = llama_tensors(value);
  std::erase_if(map.layer, [](const TensorName& row) { return row.ours.starts_with("mlp."); });
  const TensorName rows[] = {
      {"mlp.up", "feed_forward.gate_proj", Take::gate},
      {"mlp.up", "feed_forward.up_proj", Take::up},
      {"mlp.down", "feed_forward.down_proj"},
      {"mlp.router", "feed_forward.router"},
      {"mlp.experts.up.weight", "feed_forward.experts.gate_up_proj", Take::experts_stored_in_out},
      {"mlp.experts.down.weight", "feed_forward.experts.down_proj", Take::experts_stored_in_out},
      {"mlp.shared.up", "feed_forward.shared_expert.gate_proj", Take::gate},
      {"mlp.shared.up", "feed_forward.shared_expert.up_proj", Take::up},
      {"mlp.shared.down", "feed_forward.shared_expert.down_proj"}};
  map.layer.insert(map.layer.end(), std::begin(rows), std::end(rows));
  return map;
}

constexpr DecoderFamily::Key kKeys[] = {{"--moe-ffn-hidden-size", "intermediate_size"},
                                        {"--ffn-hidden-size", "intermediate_size_mlp"},
                                        {"--num-experts", "num_local_experts"}};

}  // namespace llama4_text

const DecoderFamily kLlama4Text = {.name = "llama4_text",
                                   .models = "Llama 4 Scout, Maverick (text)",
                                   .read = llama4_text::read,
                                   .write = llama4_text::write,
                                   .tensors = llama4_text::tensors,
                                   .defaults = llama4_text::kDefaults,
                                   .keys = llama4_text::kKeys};

}  // namespace megatron::models
