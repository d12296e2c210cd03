// Output of `megatron generate`.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "inference/generate.h"
#include "inference/stop_text.h"
#include "tokenizers/tokenizer.h"

namespace megatron::cli {

// Streams the text of one generation: whole characters, without special tokens, up to a stop
// string.
class GrowingText {
 public:
  // end_tokens are not part of the text.
  GrowingText(const tokenizers::Tokenizer& tokenizer, std::span<const int32_t> prompt,
              const std::vector<std::string>& stops, std::vector<int32_t> end_tokens);

  const std::string& prompt() const { return prompt_; }  // as decoded by the tokenizer
  const std::string& text() const { return text_; }      // all text that can no longer change
  bool stopped() const { return stop_.stopped(); }
  // Returns the text that has become certain.
  std::string push(int32_t token);
  std::string finish();

 private:
  std::string keep(std::string piece);

  tokenizers::DecodeStream stream_;
  inference::StopText stop_;
  std::vector<int32_t> end_tokens_;
  std::string prompt_, text_;
};

// The texts of a generation's beams after a prompt.
std::vector<std::string> texts_of_beams(const inference::Generation& generation,
                                        const tokenizers::Tokenizer& tokenizer,
                                        std::span<const int32_t> prompt,
                                        const std::vector<int32_t>& end_tokens);

// One finished request.
struct Continuation {
  std::string prompt;  // as given
  std::vector<int32_t> prompt_tokens;
  std::string text;
  inference::Generation generation;
  std::vector<std::string> beam_texts;  // of generation.beams
};

// What a line of --output has besides the text.
struct LineParts {
  bool logprobs = false;
  bool predicts_prompts = true;                       // false: an encoder reads them
  std::optional<models::ExpertFacts> routed_experts;  // the model's, if tokens' experts are listed
};

// Returns a line of --output (docs/generate.md), without a newline.
std::string json_line(const Continuation& continuation, size_t request, const LineParts& parts);
// True if a file with this beginning holds such lines.
bool is_generate_output(std::string_view beginning);
// Prints the text of each beam under a line with its score. title: of the prompt.
void print_beams(const Continuation& continuation, const std::string& title);
// Prints a table of the log-probabilities, of each text returned.
void print_log_probabilities(const Continuation& continuation,
                             const tokenizers::Tokenizer& tokenizer);
// Prints the number of tokens and tokens per second to standard error.
void print_statistics(const inference::Statistics& statistics);

}  // namespace megatron::cli
