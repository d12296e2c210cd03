#include "server/tool_calls.h"

#include <algorithm>

#include "server/identifier.h"

namespace megatron::server {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

std::string_view mark(ToolFormat format) {
  switch (format) {
    case ToolFormat::hermes: return "<tool_call>";
    case ToolFormat::llama: return "<|python_tag|>";
    case ToolFormat::mistral: return "[TOOL_CALLS]";
    case ToolFormat::none: break;
  }
  return "";
}

std::string_view stripped(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

// End of the JSON object or list at the beginning of `text`; npos if it does not end.
size_t end_of_value(std::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      if (--depth == 0) return i + 1;
    }
    if (depth == 0) return text.npos;
  }
  return text.npos;
}

// Removes the JSON value from the front of `text` and returns it.
std::optional<Json> take_value(std::string_view& text) {
  text = stripped(text);
  const size_t end = end_of_value(text);
  if (end == text.npos) return std::nullopt;
  try {
    Json value = Json::parse(text.substr(0, end));
    text = stripped(text.substr(end));
    return value;
  } catch (const Error&) {
    return std::nullopt;
  }
}

bool take_word(std::string_view& text, std::string_view word) {
  text = stripped(text);
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

ToolCall call_of(std::string name, const Json* arguments) {
  std::string written = "{}";
  if (arguments != nullptr && !arguments->is_null())
    written = arguments->is_string() ? arguments->as_string() : arguments->dump();
  return {random_identifier("call_"), std::move(name), std::move(written)};
}

std::optional<ToolCall> call_of(const Json& value) {
  const Json* name = value.is_object() ? value.find("name") : nullptr;
  if (name == nullptr || !name->is_string()) return std::nullopt;
  const Json* arguments = value.find("arguments");
  return call_of(name->as_string(), arguments != nullptr ? arguments : value.find("parameters"));
}

using Calls = std::optional<std::vector<ToolCall>>;

std::optional<ToolCall> take_call(std::string_view& text) {
  const std::optional<Json> value = take_value(text);
  return value ? call_of(*value) : std::nullopt;
}

Calls hermes_calls(std::string_view text) {
  std::vector<ToolCall> calls;
  while (take_word(text, "<tool_call>")) {
    const std::optional<ToolCall> call = take_call(text);
    if (!call) return std::nullopt;
    calls.push_back(*call);
    take_word(text, "</tool_call>");  // optional at the end
  }
  if (!stripped(text).empty()) return std::nullopt;
  return calls;
}

Calls llama_calls(std::string_view text) {
  std::vector<ToolCall> calls;
  take_word(text, "<|python_tag|>");
  do {
    const std::optional<ToolCall> call = take_call(text);
    if (!call) return std::nullopt;
    calls.push_back(*call);
  } while (take_word(text, ";"));
  if (!stripped(text).empty()) return std::nullopt;
  return calls;
}

// A list of calls after the marker, or names with their arguments, each after its own marker.
Calls mistral_calls(std::string_view text) {
  std::vector<ToolCall> calls;
  while (take_word(text, "[TOOL_CALLS]")) {
    text = stripped(text);
    if (text.starts_with('[')) {
      const std::optional<Json> list = take_value(text);
      if (!list) return std::nullopt;
      for (const Json& value : list->as_array()) {
        const std::optional<ToolCall> call = call_of(value);
        if (!call) return std::nullopt;
        calls.push_back(*call);
      }
      continue;
    }
    const size_t end = std::min(text.find('{'), text.find("[ARGS]"));
    if (end == text.npos || stripped(text.substr(0, end)).empty()) return std::nullopt;
    const std::string name(stripped(text.substr(0, end)));
    text.remove_prefix(end);
    take_word(text, "[ARGS]");
    const std::optional<Json> arguments = take_value(text);
    if (!arguments) return std::nullopt;
    calls.push_back(call_of(name, &*arguments));
  }
  if (!stripped(text).empty()) return std::nullopt;
  return calls;
}

// Number of bytes at the end of `text` that may be the beginning of `word`.
size_t may_begin(std::string_view text, std::string_view word) {
  for (size_t n = std::min(text.size(), word.size() - 1); n > 0; --n)
    if (text.ends_with(word.substr(0, n))) return n;
  return 0;
}

}  // namespace

Json ToolCall::json() const {
  return Json::Object{{"id", id},
                      {"type", "function"},
                      {"function", Json::Object{{"name", name}, {"arguments", arguments}}}};
}

Calls parse_tool_calls(ToolFormat format, std::string_view text) {
  Calls calls;
  switch (format) {
    case ToolFormat::hermes: calls = hermes_calls(text); break;
    case ToolFormat::llama: calls = llama_calls(text); break;
    case ToolFormat::mistral: calls = mistral_calls(text); break;
    case ToolFormat::none: break;
  }
  return calls && calls->empty() ? std::nullopt : calls;
}

std::string ToolCallSplitter::push(std::string_view text) {
  if (format_ == ToolFormat::none) return std::string(text);
  held_ += text;
  if (in_calls_) return {};
  if (format_ == ToolFormat::llama && !begun_) {  // without a marker, the whole text is the call
    const size_t first = held_.find_first_not_of(kSpace);
    if (first == held_.npos) return {};
    begun_ = true;
    in_calls_ = held_[first] == '{';
    if (in_calls_) return {};
  }
  const size_t at = held_.find(mark(format_));
  in_calls_ = at != held_.npos;
  const std::string_view before = std::string_view(held_).substr(
      0, in_calls_ ? at : held_.size() - may_begin(held_, mark(format_)));
  // White space before a call is dropped.
  const size_t certain = before.find_last_not_of(kSpace) + 1;
  std::string said = held_.substr(0, certain);
  held_.erase(0, certain);
  return said;
}

ToolCallSplitter::End ToolCallSplitter::finish() {
  End end;
  if (in_calls_) {
    if (auto calls = parse_tool_calls(format_, held_)) {
      end.calls = std::move(*calls);
      held_.clear();
    }
  }
  end.said = std::exchange(held_, {});
  return end;
}

}  // namespace megatron::server
