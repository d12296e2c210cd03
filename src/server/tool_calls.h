// Tool calls in a model's text.
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

  Json json() const;  // as in a message
};

// Divides a growing text into content and tool calls. The result does not depend on how the text is
// split into pieces.
class ToolCallSplitter {
 public:
  explicit ToolCallSplitter(ToolFormat format) : format_(format) {}

  std::string push(std::string_view text);  // returns text that can no longer change, possibly ""

  struct End {
    std::string said;  // the remaining text, including text that only resembled a call
    std::vector<ToolCall> calls;
  };
  End finish();

 private:
  ToolFormat format_;
  bool begun_ = false, in_calls_ = false;
  std::string held_;  // undecided text, from the first call's marker on
};

// Parses the calls in a text that begins with the format's marker; nullopt if it is not a call.
std::optional<std::vector<ToolCall>> parse_tool_calls(ToolFormat format, std::string_view text);

}  // namespace megatron::server
