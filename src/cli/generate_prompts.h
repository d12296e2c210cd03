// Sources of the prompts of `megatron generate`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/fields.h"

namespace megatron::cli {

struct PromptSettings {
  std::vector<std::string> prompts;
  std::optional<std::string> file;
  bool a_line = false, interactive = false;

  void fields(Fields& fields);
  // True if a conversation is requested, or if nothing is given and standard input is a terminal.
  bool is_conversation() const;
  // Returns all prompts, at least one. Throws Error naming the file and line that have none.
  std::vector<std::string> read() const;
};

}  // namespace megatron::cli
