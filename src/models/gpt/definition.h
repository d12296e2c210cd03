// Models that GptModel composes.
#pragma once

#include "models/gpt/config.h"
#include "models/model.h"

namespace megatron::models {

// Finalizes the config; throws Error as finalize() does.
Model gpt_model(GptConfig config);
Model gpt2_from_config_json(const Json& config);
Model llama_from_config_json(const Json& config);
Model gpt_from_flags(const ModelFlags& flags, int64_t seq_length);

}  // namespace megatron::models
