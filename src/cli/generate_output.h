// What `megatron generate` shows of a generation.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "inference/generate.h"
#include "inference/stop_text.h"
#include "tokenizers/tokenizer.h"

namespace megatron::cli {

// The text of one generation as it grows: whole characters, without special tokens, up to a stop
// string.
class GrowingText {
 public:
  // end_tokens are no part of the text.
  GrowingText(const tokenizers::Tokenizer& tokenizer, std::span<const int32_t> prompt,
              const std::vector<std::string>& stops, std::vector<int32_t> end_tokens);

  const std::string& prompt() const { return prompt_; }  // as the tokenizer gives it back
  const std::string& text() const { return text_; }      // all that is certain
  bool stopped() const { return stop_.stopped(); }
  // What became certain.
  std::string push(int32_t token);
  std::string finish();

 private:
  std::string keep(std::string piece);

  tokenizers::DecodeStream stream_;
  inference::StopText stop_;
  std::vector<int32_t> end_tokens_;
  std::string prompt_, text_;
};

// One finished request.
struct Continuation {
  std::string prompt;  // as it was given
  std::vector<int32_t> prompt_tokens;
  std::string text;
  inference::Generation generation;
};

// A line of --output (docs/generate.md), without its end. with_logprobs: the log-probabilities, too.
std::string json_line(const Continuation& continuation, size_t request, bool with_logprobs);
// Whether a file that begins like this holds such lines.
bool is_generate_output(std::string_view beginning);
// A table of the log-probabilities.
void print_log_probabilities(const Continuation& continuation,
                             const tokenizers::Tokenizer& tokenizer);
// Tokens and tokens a second, on standard error.
void print_statistics(const inference::Statistics& statistics);

}  // namespace megatron::cli
