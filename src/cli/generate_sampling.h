// Flags of `megatron generate` for sampling and for the end of texts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/fields.h"
#include "inference/beam_options.h"
#include "inference/sampling.h"

namespace megatron::cli {

struct SamplingSettings {
  inference::SamplingOptions options;  // complete after check()
  int64_t seed = 1234, max_tokens = 128;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_tokens;  // after check()
  bool ignore_eos = false;
  std::optional<inference::BeamOptions> beams;  // after check(); empty: sampling

  void fields(Fields& fields);
  void check();
  // Throws Error for an id beyond a tokenizer's `vocabulary` tokens.
  void check_ids(int64_t vocabulary) const;

 private:
  void check_beams();

  std::optional<int64_t> num_beams_, num_return_sequences_;
  std::optional<double> length_penalty_;
  inference::EarlyStopping early_stopping_ = inference::EarlyStopping::no;
  std::vector<std::string> logit_bias_, stop_token_ids_;
};

}  // namespace megatron::cli
