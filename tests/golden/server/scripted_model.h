// A model that generates a given text: its next token depends only on the position.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "golden/server/support.h"

namespace megatron::testing {

constexpr int64_t kScriptedPositions = 256;

inline models::ModelFlags scripted_shape() {
  models::ModelFlags flags = gpt2_shape(1, kScriptedPositions, 2, 256, kScriptedPositions);
  flags.untie = true;
  return flags;
}

// Position t has its own embedding, and the output layer gives script[t] the largest logit. The
// other weights have no effect.
inline void write_script(models::Stage& stage, const std::string& script) {
  constexpr size_t kPositions = kScriptedPositions;
  ASSERT_LE(script.size(), kPositions);
  size_t written = 0;
  for (parallel::ParameterSpec* placed : stage.parameters()) {
    Tensor& value = placed->parameter.value;
    const std::string& name = placed->parameter.name;
    std::vector<double> values(to_doubles(value).size(), 0);
    if (name == "position_embedding.weight") {
      for (size_t t = 0; t < kPositions; ++t) values[t * kPositions + t] = 1;
      ++written;
    } else if (name == "output.weight") {
      for (size_t t = 0; t < script.size(); ++t)
        values[static_cast<unsigned char>(script[t]) * kPositions + t] = 1;
      ++written;
    } else if (name == "final_norm.weight") {
      values.assign(values.size(), 1);
      ++written;
    }
    copy_from(value, std::span<const double>(values));
  }
  ASSERT_EQ(written, 3u);
}

// A script that generates `text` and the end token after `prompt_tokens` tokens.
inline std::string script(size_t prompt_tokens, const std::string& text) {
  return std::string(prompt_tokens - 1, ' ') + text + std::string(1, '\0');
}

}  // namespace megatron::testing
