// Compares beam search with that of another system.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "selftest/report.h"
#include "selftest/verify.h"

namespace megatron::selftest {

// directory: files NAME.json, each {cases}: a list of
//   input_ids, attention_mask    prompts, or an encoder's texts with 0 for padding
//   num_beams, num_return_sequences, max_new_tokens, min_new_tokens, eos_token_id, length_penalty,
//   early_stopping               as generate() of transformers has them; eos_token_id: a list
//   result                       by prompt, the texts returned: {tokens, score}, best first
//   steps                        passes that the prompt took that took longest
bool has_beams(const std::string& directory);

// Runs the cases of NAME.json with an engine of the model in `models`/NAME (default:
// directory/../hf): tokens and steps must be equal, and scores within 1e-4 (1 + |score|). Only
// tensor, pipeline and expert parallelism divide a model. One report per file and device; a file
// whose model cannot be used has a report that says why. Throws Error for other options, and if a
// file is malformed.
std::vector<Report> verify_beams(const std::string& directory,
                                 const std::optional<std::string>& models,
                                 const VerifyOptions& options);

}  // namespace megatron::selftest
