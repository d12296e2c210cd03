// One generated text of a reply, as it grows.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "inference/engine.h"
#include "inference/stop_text.h"
#include "server/text_model.h"

namespace megatron::server {

struct ChoiceOptions {
  std::vector<std::string> stops;
  std::vector<int32_t> end_tokens;     // not part of the text
  bool gives_end_token = false;        // include the end token in the returned tokens
  std::vector<int32_t> shown_special;  // special tokens that are part of the text
  int64_t min_tokens = 0;              // stop strings are ignored before this many tokens
};

// A token of the text and the byte offset at which it begins there.
struct TextToken {
  inference::GeneratedToken token;
  size_t begin = 0;
};

// Text that has become certain since the last call: whole characters, and the tokens that begin in
// them.
struct Piece {
  std::string text;
  std::vector<TextToken> tokens;

  bool empty() const { return text.empty() && tokens.empty(); }
};

// The text consists of whole characters up to a stop string or an end token. Its concatenated
// pieces do not depend on when they are taken.
class Choice {
 public:
  // prompt: the tokens before the text. The model must outlive it.
  Choice(const TextModel& model, std::span<const int32_t> prompt, ChoiceOptions options);

  // Returns true if a stop string has ended the text, so that the engine need not continue.
  bool take(const inference::RequestUpdate& update);
  Piece take_piece();

  bool finished() const { return finish_.has_value(); }
  std::string finish_reason() const;                       // "stop" or "length"
  int64_t generated_tokens() const { return generated_; }  // includes tokens that ended the text
  const std::vector<double>& prompt_log_probabilities() const { return of_prompt_; }
  const std::vector<inference::PromptAlternatives>& prompt_alternatives() const {
    return prompt_alternatives_;
  }
  // A list for each token of prompt and text that the model has read; null if it is not requested.
  Json routed_experts() const;
  double log_probability() const { return log_probability_; }  // total of all generated tokens
  // Score of a text that beam search found (inference::BeamResult).
  void set_score(double score) { score_ = score; }
  double score() const { return score_; }

 private:
  void push(const inference::GeneratedToken& token);
  void add(std::string_view text);
  void end(inference::Finish finish);
  void forget_tokens_behind(size_t length);

  const TextModel& model_;
  ChoiceOptions options_;
  tokenizers::DecodeStream stream_;
  inference::StopText stop_;
  std::optional<inference::Finish> finish_;
  int64_t generated_ = 0;
  double log_probability_ = 0, score_ = 0;
  std::vector<double> of_prompt_;
  std::vector<inference::PromptAlternatives> prompt_alternatives_;
  std::vector<int32_t> expert_choices_;
  // Bytes from the stream, and bytes of text that can no longer change.
  size_t decoded_ = 0, certain_ = 0;
  Piece new_;
};

}  // namespace megatron::server
