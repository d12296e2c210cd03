// Checks chat templates against renderings by transformers.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>

#include "base/json.h"
#include "tokenizers/chat/chat_template.h"

namespace megatron::tokenizers {

// Cases of one file. Each is an object with `messages`, maybe `tools`, `documents`,
// `add_generation_prompt`, `continue_final_message` (true, or the member to continue), other
// variables that its template reads, and either `rendered` (and maybe `generation_spans`) or
// `error`, the text of raise_exception. `template`: the file templates/NAME.json next to the cases;
// absent: the directory's own template. `chat`, `tag`: names for people.
class ChatCases {
 public:
  // The time at which the vectors were rendered.
  static std::chrono::local_seconds usual_clock() { return parse_clock("2025-03-09 07:05:01"); }

  // directory: where the file of cases is.
  explicit ChatCases(std::string directory, std::chrono::local_seconds now = usual_clock());

  // Returns nullopt if the case passes, otherwise a description of the difference. An unknown
  // field, a case without an expectation, and a template that cannot be read are failures.
  std::optional<std::string> check(const Json& line);

  static Chat chat_of(const Json& line);  // throws Error on fields of the wrong type

 private:
  const ChatTemplate& template_of(const Json& line);

  std::string directory_;
  std::chrono::local_seconds now_;
  std::map<std::string, ChatTemplate> templates_;
};

}  // namespace megatron::tokenizers
