// Names of the tensors in an adapter's directory, as PEFT writes them to adapter_model.safetensors:
// "base_model.model." before the base model's names, and no adapter's name.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace megatron::models {

enum class AdapterPart : uint8_t {
  a,            // lora_A.weight [rank, in]
  b,            // lora_B.weight [out, rank]
  b_bias,       // lora_B.bias [out]
  embedding_a,  // lora_embedding_A [rank, vocabulary]
  embedding_b,  // lora_embedding_B [hidden, rank]
  magnitude,    // lora_magnitude_vector [out]: DoRA
  base_weight,  // base_layer.weight: copy of the weight of an adapted embedding or head
  base_bias,    // base_layer.bias: trained bias of an adapted module
  token_rows,   // token_adapter.trainable_tokens_delta [ids, hidden]: trained rows of an embedding
  whole,        // a tensor of the base model: of a module saved whole, or a trained bias
};

struct StoredName {
  std::string module;  // "model.layers.0.self_attn.q_proj"
  AdapterPart part = AdapterPart::a;
  std::string parameter;  // of `whole`: "weight"
  // Parts a and b of a module's parameters (target_parameters): the number of "base_layer" between
  // the module's name and the part's. PEFT nests one adapter for each parameter:
  // nested_parameter().
  int64_t nesting = 0;

  bool operator==(const StoredName&) const = default;
};

std::string stored_name(std::string_view module, AdapterPart part);  // any part but `whole`
std::string stored_name(const StoredName& name);
// Throws Error naming the tensor and what is expected.
StoredName parse_stored_name(std::string_view tensor);

// The parameter whose adapter has the given nesting. adapted: the module's adapted parameters in
// the order in which the module declares them (gate_up_proj, down_proj); the last is the outermost.
// Throws Error if there are too few.
std::string_view nested_parameter(std::span<const std::string> adapted, int64_t nesting);

}  // namespace megatron::models
