// Calls of tools in what a model writes.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "server/text_model.h"

namespace megatron::server {

struct ToolCall {
  std::string id, name, arguments;  // id: "call_..."; arguments: JSON

  Json json() const;  // as a message has it
};

// Divides a growing text into what is said and calls of tools. What it gives does not depend on how
// the text is cut.
class ToolCallSplitter {
 public:
  explicit ToolCallSplitter(ToolFormat format) : format_(format) {}

  std::string push(std::string_view text);  // what is certain to be said, maybe ""

  struct End {
    std::string said;  // the rest: also what looked like a call and is none
    std::vector<ToolCall> calls;
  };
  End finish();

 private:
  ToolFormat format_;
  bool begun_ = false, in_calls_ = false;
  std::string held_;  // not certain yet; from the first call's mark on
};

// Calls in a text that begins with the format's mark; none where it is not one.
std::optional<std::vector<ToolCall>> parse_tool_calls(ToolFormat format, std::string_view text);

}  // namespace megatron::server
