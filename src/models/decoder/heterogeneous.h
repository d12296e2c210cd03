// Layers that differ, as Megatron-LM's --heterogeneous-layers-config-path and Llama-Nemotron's
// config.json list them (Bercovich et al. 2024).
#pragma once

#include <string>

#include "models/decoder/value.h"

namespace megatron::models {

// Changes the value's layers as `config`, {"block_configs": [{"attention": {n_heads_in_group |
// num_query_groups | no_op | replace_with_linear}, "ffn" or "mlp": {ffn_mult | ffn_hidden_size |
// intermediate_size | no_op | replace_with_linear}}]} says, one entry a layer. `where` names the
// list in errors. Throws Error naming the layer and the key.
void apply_block_configs(const Json& config, std::string_view where, DecoderValue& value);
// Applies only the list.
void apply_blocks(const Json& list, std::string_view where, DecoderValue& value);

}  // namespace megatron::models
