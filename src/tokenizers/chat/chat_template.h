// Chat templates: render a list of messages to the text format that a model was trained on, like
// transformers' apply_chat_template.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "jinja/budget.h"
#include "jinja/template.h"

namespace megatron::tokenizers {

struct Chat {
  Json::Array messages;                  // objects; null members count as absent
  std::optional<Json::Array> tools;      // JSON schemas; also chooses the template "tool_use"
  std::optional<Json::Array> documents;  // objects
  Json::Object variables;                // other variables of the template
  bool add_generation_prompt = false;
  // The member of the last message ("content") that the model continues; the text ends with it.
  // Empty: none.
  std::string continued;
  std::chrono::local_seconds now{};  // returned by strftime_now
  jinja::Limits limits;
};

struct RenderedChat {
  std::string text;
  // The assistant's text, as marked by {% generation %} in the template: code points [begin, end).
  // Spans beyond the end of a continued message are cut.
  std::vector<std::pair<int64_t, int64_t>> generation;
};

// The templates of a model directory and its special tokens, which are variables of the templates
// (bos_token, eos_token, ...).
class ChatTemplate {
 public:
  // path: a model directory: chat_template.jinja with additional_chat_templates/NAME.jinja, else
  // chat_template.json, else `chat_template` of tokenizer_config.json (a text, or a list of
  // {name, template}). Or a file like tokenizer_config.json. Throws Error naming file and reason.
  static ChatTemplate load(const std::string& path);

  // Replaces all templates by one.
  void set_template(std::string source, std::string name);
  bool empty() const { return templates_.empty(); }

  // name: the template's name; empty: "tool_use" if it exists and tools are given, else "default",
  // which is also the name of a single template. Throws jinja::TemplateError for errors in the
  // template, failures while it runs, and raise_exception; Error otherwise.
  RenderedChat render(const Chat& chat, const std::string& name = "") const;
  // True if the template chosen in this way reads a variable of that name.
  bool reads(const std::string& variable, bool with_tools, const std::string& name = "") const;
  // True if the template chosen in this way marks the assistant's text by {% generation %}.
  bool marks_generation(bool with_tools) const;
  const std::string& source(bool with_tools, const std::string& name = "") const;

 private:
  struct Named {
    std::string name, source;
    jinja::Template parsed;
  };

  void add_template(const std::string& name, std::string_view source, const std::string& origin);
  void read_config(const Json& config, const std::string& origin);
  void read_special_tokens(const Json& config, const std::string& origin);
  void read_template_files(const std::string& directory);
  const Named& choose(const std::string& name, bool with_tools) const;

  std::vector<Named> templates_;
  std::vector<std::pair<std::string, std::string>> special_tokens_;
};

// Parses "2025-03-09 07:05:01" (also with T, or a date alone). Throws Error.
std::chrono::local_seconds parse_clock(const std::string& text);
std::chrono::local_seconds local_now();

}  // namespace megatron::tokenizers
