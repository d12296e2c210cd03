#include "tokenizers/chat/chat_cases.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/error.h"
#include "base/shorten.h"
#include "base/utf8.h"

namespace megatron::tokenizers {
namespace {

using Spans = std::vector<std::pair<int64_t, int64_t>>;

// Fields that define a case; all others are variables of the template.
constexpr std::array<std::string_view, 11> kFields = {"template",
                                                      "chat",
                                                      "tag",
                                                      "messages",
                                                      "tools",
                                                      "documents",
                                                      "add_generation_prompt",
                                                      "rendered",
                                                      "error",
                                                      "generation_spans",
                                                      "continue_final_message"};

bool is_field(std::string_view name) {
  return std::find(kFields.begin(), kFields.end(), name) != kFields.end();
}

std::string shown(std::string_view text) { return cut_short(Json(text).dump(), 160); }

// First difference between two texts, with what follows in each.
std::string difference(const std::string& wanted, const std::string& got) {
  const auto parts = std::mismatch(wanted.begin(), wanted.end(), got.begin(), got.end());
  auto at = static_cast<size_t>(parts.first - wanted.begin());
  const auto within = [](const std::string& text, size_t i) {
    return i < text.size() && continues_character(text[i]);
  };
  while (at > 0 && (within(wanted, at) || within(got, at))) --at;
  return fmt::format("differs from byte {}: expected {}, got {}", at, shown(wanted.substr(at)),
                     shown(got.substr(at)));
}

Spans spans_of(const Json& json) {
  Spans spans;
  for (const Json& pair : json.as_array()) {
    const Json::Array& both = pair.as_array();
    MG_CHECK(both.size() == 2, "generation_spans: {} is not a pair", pair.dump());
    spans.emplace_back(both[0].as_integer(), both[1].as_integer());
  }
  return spans;
}

std::string listed(const Spans& spans) {
  std::string text;
  for (const auto& [begin, end] : spans)
    text += fmt::format("{}[{}, {}]", text.empty() ? "" : ", ", begin, end);
  return "[" + text + "]";
}

std::optional<std::string> compare(const Json& line, const RenderedChat& rendered) {
  const Json* wanted = line.find("rendered");
  if (wanted == nullptr) {
    return fmt::format("expected the error {}, got {}", shown(line["error"].as_string()),
                       shown(rendered.text));
  }
  if (wanted->as_string() != rendered.text) return difference(wanted->as_string(), rendered.text);
  const Json* spans = line.find("generation_spans");
  if (spans != nullptr && spans_of(*spans) != rendered.generation) {
    return fmt::format("generation_spans: expected {}, got {}", spans->dump(),
                       listed(rendered.generation));
  }
  return std::nullopt;
}

std::optional<Json::Array> list_in(const Json& line, const char* field) {
  const Json* list = line.find(field);
  if (list == nullptr || list->is_null()) return std::nullopt;
  MG_CHECK(list->is_array(), "'{}' must be a list", field);
  return list->as_array();
}

}  // namespace

ChatCases::ChatCases(std::string directory, std::chrono::local_seconds now)
    : directory_(std::move(directory)), now_(now) {}

Chat ChatCases::chat_of(const Json& line) {
  MG_CHECK(line.is_object(), "a chat must be a JSON object with 'messages'");
  Chat chat;
  auto messages = list_in(line, "messages");
  MG_CHECK(messages.has_value(), "a chat must have a list 'messages'");
  chat.messages = std::move(*messages);
  chat.tools = list_in(line, "tools");
  chat.documents = list_in(line, "documents");
  if (const Json* prompt = line.find("add_generation_prompt"))
    chat.add_generation_prompt = prompt->as_bool();
  if (const Json* member = line.find("continue_final_message")) {
    if (member->is_string()) {
      chat.continued = member->as_string();
    } else if (member->as_bool()) {
      chat.continued = "content";
    }
  }
  for (const auto& [name, value] : line.as_object())
    if (!is_field(name)) chat.variables.emplace_back(name, value);
  return chat;
}

const ChatTemplate& ChatCases::template_of(const Json& line) {
  const Json* field = line.find("template");
  const std::string name = field == nullptr ? "" : field->as_string();
  if (const auto known = templates_.find(name); known != templates_.end()) return known->second;
  MG_CHECK(name.find('/') == std::string::npos, "template '{}' must be a plain name", name);
  const std::string path =
      field == nullptr
          ? directory_
          : (std::filesystem::path(directory_) / "templates" / (name + ".json")).string();
  return templates_.emplace(name, ChatTemplate::load(path)).first->second;
}

std::optional<std::string> ChatCases::check(const Json& line) {
  try {
    Chat chat = chat_of(line);
    chat.now = now_;
    if (line.contains("rendered") == line.contains("error"))
      return "a case must have either 'rendered' or 'error'";
    const ChatTemplate& chat_template = template_of(line);
    for (const auto& [name, value] : chat.variables) {
      if (!chat_template.reads(name, chat.tools.has_value()))
        return fmt::format("unknown field '{}': the template has no such variable", name);
    }
    return compare(line, chat_template.render(chat));
  } catch (const jinja::TemplateError& error) {
    const Json* wanted = line.find("error");
    if (wanted == nullptr || !wanted->is_string()) return error.what();
    if (wanted->as_string() == error.reason()) return std::nullopt;
    return fmt::format("expected the error {}, got {}", shown(wanted->as_string()),
                       shown(error.reason()));
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace megatron::tokenizers
