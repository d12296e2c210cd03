// Divides the text that a model writes in a chat into reasoning, content and tool calls.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/tool_calls.h"

namespace megatron::server {

struct ChatFormat {
  ToolFormat tools = ToolFormat::none;
  bool reasons = false;     // texts may begin with <think>...</think>
  bool in_thought = false;  // the prompt ends inside of it

  // Format of the answer to a prompt that ends with this text.
  static ChatFormat of(const TextModel& model, bool calls_tools, std::string_view prompt);
  // Format of a text that is a single tool call in JSON and nothing else.
  static ChatFormat of_call() { return {.tools = ToolFormat::llama}; }
};

struct ChatDelta {
  std::string reasoning, content;
};

// The result does not depend on how the text is split into pieces.
class ChatText {
 public:
  explicit ChatText(const ChatFormat& format);

  ChatDelta push(std::string_view text);

  struct End {
    ChatDelta rest;
    std::vector<ToolCall> calls;
  };
  End finish();

 private:
  enum class Place { start, thought, after_thought, content };

  void read(ChatDelta& delta);
  bool read_start();
  bool read_thought(ChatDelta& delta);

  Place place_;
  bool thought_begun_ = false;
  std::string held_;
  ToolCallSplitter tools_;
};

}  // namespace megatron::server
