// The body of POST /v1/chat/completions.
#pragma once

#include "server/generation_parameters.h"

namespace megatron::server {

struct ChatRequest {
  tokenizers::Chat chat;  // what the template renders, including callable tools
  GenerationParameters generation;
  bool logprobs = false;
  int64_t top_logprobs = 0;
  bool calls_tools = false;         // tools are given and may be called
  bool must_call = false;           // the text must be a call: {"name": ..., "arguments": ...}
  bool parallel_tool_calls = true;  // false: returns at most one call
};

// Throws ApiError.
ChatRequest read_chat(const Json& body, const TextModel& model);

// Reads messages, tools and other fields used by the template, for requests for chats and for their
// tokens. prompts: whether a chat ends with the generation prompt unless the request says
// otherwise.
tokenizers::Chat read_messages(const Parameters& p, bool prompts = true);

struct RenderedPrompt {
  std::string text;
  std::vector<int32_t> tokens;
};
// Throws ApiError if the template refuses the chat; the message does not contain the template
// file's path.
RenderedPrompt render(const tokenizers::Chat& chat, const TextModel& model);

}  // namespace megatron::server
