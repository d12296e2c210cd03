#include <fmt/ranges.h>

#include <cstdio>

#include "base/error.h"
#include "base/files.h"
#include "cli/command.h"
#include "tokenizers/chat/chat_cases.h"
#include "tokenizers/chat/chat_template.h"
#include "tokenizers/tokenizer.h"

namespace megatron::cli {
namespace {

struct ChatOptions {
  std::optional<std::string> model, messages, tools, documents, variables, chat_template, now;
  std::string name;
  bool prompt = false, carry_on = false, tokenize = false, spans = false;
};

void add_fields(Fields& f, ChatOptions& o) {
  f.add("tokenizer-model", &o.model, "model directory with the chat template and the tokenizer");
  f.add("messages", &o.messages,
        "JSON file: a list of messages, or an object with messages, tools, ...; default standard "
        "input");
  f.add("tools", &o.tools, "JSON file: a list of tools, each a JSON schema");
  f.add("documents", &o.documents, "JSON file: a list of documents");
  f.add("variables", &o.variables, "JSON object with other variables for the template");
  f.add("chat-template", &o.chat_template, "file with a Jinja template to use instead");
  f.add("template", &o.name, "name of a template, if the directory has several");
  f.add_switch("add-generation-prompt", &o.prompt, true,
               "end with the header of the assistant's "
               "reply (generation prompt)");
  f.add_switch("continue-final-message", &o.carry_on, true,
               "leave the last message open for the model to continue");
  f.add("now", &o.now, "date and time that templates see: \"2025-03-09 07:05:01\"; default now");
  f.add_switch("tokenize", &o.tokenize, true, "print token ids instead of the text");
  f.add_switch("show-spans", &o.spans, true,
               "after the text, print a line of JSON with the [begin, end) code-point ranges of "
               "the assistant's turns, if the template has {% generation %}");
}

Json::Array read_list(const std::string& path, const char* flag) {
  Json json = Json::read(path);
  MG_CHECK(json.is_array(), "--{} {}: the file does not hold a JSON list", flag, path);
  return std::move(json.as_array());
}

tokenizers::Chat read_chat(const ChatOptions& o) {
  Json json =
      o.messages ? Json::read(*o.messages) : Json::parse(read_standard_input(), "standard input");
  if (json.is_array()) json = Json(Json::Object{{"messages", std::move(json)}});
  MG_CHECK(json.is_object(),
           "{} must contain a list of messages, or an object with 'messages'; it contains {}",
           o.messages ? "--messages " + *o.messages : "standard input", json.dump().substr(0, 40));
  tokenizers::Chat chat = tokenizers::ChatCases::chat_of(json);
  if (o.tools) chat.tools = read_list(*o.tools, "tools");
  if (o.documents) chat.documents = read_list(*o.documents, "documents");
  if (o.variables) {
    const Json variables = Json::parse(*o.variables, "--variables");
    MG_CHECK(variables.is_object(), "--variables must be a JSON object: {{\"name\": value}}");
    for (const auto& member : variables.as_object()) chat.variables.push_back(member);
  }
  if (o.prompt) chat.add_generation_prompt = true;
  if (o.carry_on) chat.continued = "content";
  chat.now = o.now ? tokenizers::parse_clock(*o.now) : tokenizers::local_now();
  return chat;
}

void print_spans(const tokenizers::RenderedChat& rendered) {
  Json::Array spans;
  for (const auto& [begin, end] : rendered.generation)
    spans.emplace_back(Json::Array{Json(begin), Json(end)});
  fmt::print("\n{}\n", Json(std::move(spans)).dump());
}

}  // namespace

int tokenizer_chat(const Arguments& arguments) {
  ChatOptions o;
  Fields f;
  add_fields(f, o);
  if (const auto code =
          parse("megatron tokenizer chat --tokenizer-model DIR [--messages FILE] [flags]",
                "Renders a list of messages with the model's chat template. The text is printed "
                "as it is, without a trailing newline.",
                f, {}, arguments)) {
    return *code;
  }
  MG_CHECK(o.model.has_value(), "--tokenizer-model DIR is needed");
  MG_CHECK(!o.tokenize || !o.spans,
           "--show-spans refers to characters of the text, but --tokenize prints ids instead; "
           "drop one");
  auto chat_template = tokenizers::ChatTemplate::load(*o.model);
  if (o.chat_template) chat_template.set_template(read_file(*o.chat_template), *o.chat_template);
  const tokenizers::RenderedChat rendered = chat_template.render(read_chat(o), o.name);
  if (o.tokenize) {
    const auto tokenizer = tokenizers::Tokenizer::load(*o.model);
    fmt::print("{}\n", fmt::join(tokenizer.encode(rendered.text, false), " "));
    return 0;
  }
  std::fwrite(rendered.text.data(), 1, rendered.text.size(), stdout);
  if (o.spans) print_spans(rendered);
  return 0;
}

}  // namespace megatron::cli
