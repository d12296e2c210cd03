// Conversion between Megatron-LM's flags and a decoder's value.
#pragma once

#include "models/decoder/value.h"
#include "models/model_flags.h"

namespace megatron::models {

// Not checked. The file of --heterogeneous-layers-config-path is read. seq_length: position
// embeddings when --max-position-embeddings is not given. Throws Error naming a flag that is
// missing, or flags that do not go together.
DecoderValue value_of(const ModelFlags& flags, int64_t seq_length);
// Throws Error for a flag outside its row's range.
template <class Flags>
void check_ranges(Flags flags) {
  Fields fields;
  flags.fields(fields);
  fields.check();
}
// Configuration of the experts that replace the feed-forward block `mlp`, and the layers that have
// them.
nn::MoeConfig moe_of(const MoeFlags& flags, const nn::MlpConfig& mlp);
std::vector<bool> expert_layers(const MoeFlags& flags, int64_t layers);

}  // namespace megatron::models
