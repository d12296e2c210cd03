// Where `megatron generate` gets its prompts from.
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
  // Nothing is given and standard input is a terminal, or it is asked for.
  bool is_conversation() const;
  // All prompts, at least one. Throws Error naming the file and line that hold none.
  std::vector<std::string> read() const;
};

}  // namespace megatron::cli
