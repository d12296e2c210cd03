// Every family, each in its folder.
#pragma once

#include "models/families/family.h"

namespace megatron::models {

extern const DecoderFamily kGpt2, kGptNeox, kLlama, kMistral, kQwen2, kQwen3, kGemma2, kGemma3Text,
    kPhi3, kOlmo2, kGranite, kNemotron, kNemotronNas, kStarcoder2, kFalcon, kCohere2;
extern const DecoderFamily kMegatron;  // any value

// Flags and keys of the config.json files that are like Llama's.
inline constexpr DecoderFamily::Key kLlamaKeys[] = {
    {"--num-layers", "num_hidden_layers"},
    {"--ffn-hidden-size", "intermediate_size"},
    {"--hidden-size", "hidden_size"},
    {"--num-attention-heads", "num_attention_heads"},
    {"--num-query-groups", "num_key_value_heads"},
    {"--kv-channels", "head_dim"},
    {"--max-position-embeddings", "max_position_embeddings"},
    {"--vocab-size", "vocab_size"},
    {"--hidden-dropout", "hidden_dropout"},
    {"--attention-dropout", "attention_dropout"},
    {"--norm-epsilon", "rms_norm_eps"},
    {"--init-method-std", "initializer_range"},
    {"--rotary-percent", "partial_rotary_factor"},
    {"--rotary-base", "rope_theta"},
    {"--window-size", "sliding_window"}};
// Angles that older files of families with rotary positions hold.
inline constexpr std::string_view kRotaryBuffers[] = {
    "model.layers.*.self_attn.rotary_emb.inv_freq"};

}  // namespace megatron::models
