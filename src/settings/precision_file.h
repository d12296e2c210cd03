// Files that choose the precision of single modules (--te-precision-config-file), in the format of
// Megatron-LM.
#pragma once

#include <string>
#include <vector>

#include "autograd/low_precision.h"

namespace megatron::settings {

// Reads the enabled matchers of a file, in its order:
//
//   configs:
//     mxfp8:
//       transformer_engine_config_type: TEQuantizationParams
//       training_recipe: {fp8_quantization_recipe: mxfp8, fp8_format: hybrid}
//     bf16:
//       transformer_engine_config_type: TEQuantizationParams
//       training_recipe: {}
//   matchers:
//     outputs:
//       {type: glob, pattern: "*.linear_proj", config: bf16, enabled: true}
//
// Throws Error naming file, line and value for anything else: a key or a name that is not known, a
// matcher of a config that is not there, recipes that are not supported, no enabled matcher.
std::vector<PrecisionRule> read_precision_rules(const std::string& path);
// The same for a file's content; path: its name in messages.
std::vector<PrecisionRule> parse_precision_rules(std::string content, const std::string& path);

}  // namespace megatron::settings
