#include "corpus/chat/chat_reader.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "data/input_file.h"
#include "data/input_list.h"
#include "data/json_lines.h"
#include "data/json_record.h"

namespace megatron::corpus {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kElement = ", element ";  // in the places of an array's records

constexpr std::array kRoles = {"system", "developer", "user",   "assistant",
                               "tool",   "function",  "ipython"};
// ShareGPT's names.
constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kSpeakers = {{
    {"human", "user"},
    {"user", "user"},
    {"gpt", "assistant"},
    {"assistant", "assistant"},
    {"system", "system"},
    {"function_call", "assistant"},
    {"observation", "tool"},
    {"function_response", "tool"},
    {"tool", "tool"},
}};

// Reads members of a record, with errors that name its place.
class Record {
 public:
  Record(const Json& json, const std::string& place) : json_(json), place_(place) {
    MG_CHECK(json.is_object(), "{}: a record is a JSON object, but this is {}", place,
             shortened(json));
  }

  bool has(const char* key) const {
    const Json* value = json_.find(key);
    return value != nullptr && !value->is_null();
  }
  const Json& at(const char* key) const { return json_[key]; }
  const std::string& text(const char* key) const {
    const Json& value = json_[key];
    MG_CHECK(value.is_string(), "{}: '{}' is {}, not a text", place_, key, shortened(value));
    return value.as_string();
  }
  const Json::Array& list(const char* key) const {
    const Json& value = json_[key];
    MG_CHECK(value.is_array(), "{}: '{}' is {}, not a list", place_, key, shortened(value));
    return value.as_array();
  }
  const std::string& place() const { return place_; }

  static std::string shortened(const Json& value) {
    std::string text = value.dump();
    if (text.size() > 60) text = text.substr(0, 57) + "...";
    return text;
  }

 private:
  const Json& json_;
  const std::string& place_;
};

Json message(std::string_view role, Json content) {
  return Json::Object{{"role", Json(role)}, {"content", std::move(content)}};
}

// Templates expect the arguments of a tool call as an object.
void parse_arguments(Json& call, const std::string& place) {
  if (!call.is_object()) return;
  for (auto& [key, value] : call.as_object()) {
    if (key == "function") parse_arguments(value, place);
    if (key == "arguments" && value.is_string() && !value.as_string().empty())
      value = Json::parse(value.as_string(), place + ", arguments of a tool call");
  }
}

Json checked_message(const Json& given, const std::string& place) {
  const Record record(given, place);
  MG_CHECK(record.has("role"), "{}: the message {} has no 'role'", place, Record::shortened(given));
  const std::string& role = record.text("role");
  MG_CHECK(std::ranges::find(kRoles, role) != kRoles.end(),
           "{}: unknown role '{}': it is one of system, developer, user, assistant and tool", place,
           role);
  MG_CHECK(record.has("content") || record.has("tool_calls") || record.has("thinking") ||
               record.has("reasoning_content"),
           "{}: a message of the {} has neither 'content' nor 'tool_calls'", place, role);
  Json checked = given;
  for (auto& [key, value] : checked.as_object())
    if (key == "tool_calls" && value.is_array())
      for (Json& call : value.as_array()) parse_arguments(call, place);
  return checked;
}

Json::Array messages_of(const Json::Array& given, const std::string& place) {
  Json::Array messages;
  for (const Json& one : given) messages.push_back(checked_message(one, place));
  return messages;
}

Json message_of_speaker(const Json& given, const std::string& place) {
  const Record record(given, place);
  MG_CHECK(record.has("from") && record.has("value"),
           "{}: an element of 'conversations' needs 'from' and 'value', but is {}", place,
           Record::shortened(given));
  const std::string &from = record.text("from"), &value = record.text("value");
  const auto known = std::ranges::find(kSpeakers, from, [](const auto& s) { return s.first; });
  MG_CHECK(known != kSpeakers.end(),
           "{}: unknown speaker '{}': 'from' is one of human, gpt, system, function_call and "
           "observation",
           place, from);
  if (from != "function_call") return message(known->second, value);
  Json call = Json::parse(value, place + ", function_call");
  parse_arguments(call, place);
  Json::Array calls = call.is_array() ? call.as_array() : Json::Array{call};
  for (Json& one : calls) one = Json::Object{{"type", "function"}, {"function", one}};
  return Json::Object{{"role", "assistant"}, {"content", ""}, {"tool_calls", std::move(calls)}};
}

void read_prompt_and_completion(const Record& record, ChatExample& example) {
  const Json &prompt = record.at("prompt"), &completion = record.at("completion");
  if (prompt.is_string() && completion.is_string()) {
    MG_CHECK(!completion.as_string().empty(), "{}: the completion is empty", record.place());
    example.texts = {prompt.as_string(), completion.as_string()};
    return;
  }
  MG_CHECK(prompt.is_array() && completion.is_array() && !completion.as_array().empty(),
           "{}: 'prompt' and 'completion' must both be texts, or both lists of messages",
           record.place());
  example.messages = messages_of(prompt.as_array(), record.place());
  example.prompt_messages = example.messages.size();
  for (Json& answer : messages_of(completion.as_array(), record.place()))
    example.messages.push_back(std::move(answer));
}

void read_instruction(const Record& record, ChatExample& example) {
  std::string query = record.text("instruction");
  if (record.has("input") && !record.text("input").empty()) query += "\n" + record.text("input");
  if (record.has("system") && !record.text("system").empty())
    example.messages.push_back(message("system", record.text("system")));
  example.messages.push_back(message("user", query));
  example.messages.push_back(message("assistant", record.text("output")));
}

void read_tools(const Record& record, ChatExample& example) {
  if (!record.has("tools")) return;
  Json tools = record.at("tools");
  if (tools.is_string()) tools = Json::parse(tools.as_string(), record.place() + ", tools");
  MG_CHECK(tools.is_array(), "{}: 'tools' is {}, not a list of schemas", record.place(),
           Record::shortened(tools));
  if (!tools.as_array().empty()) example.tools = tools.as_array();
}

void check_answers(const ChatExample& example) {
  if (example.texts || example.prompt_messages) return;
  const bool answered = std::ranges::any_of(
      example.messages, [](const Json& m) { return m["role"].as_string() == "assistant"; });
  MG_CHECK(answered, "{}: no message is of the assistant, so that nothing can be learned from it",
           example.place);
}

// An array of records in one text. Returns false once f has.
bool read_array(const std::string& path, const std::string& text,
                const std::function<bool(Json record, std::string place)>& f) {
  Json all = Json::parse(text, path);
  for (size_t i = 0; i < all.as_array().size(); ++i)
    if (!f(std::move(all.as_array()[i]), fmt::format("{}{}{}", path, kElement, i))) return false;
  return true;
}

void read_template_inputs(const Record& r, ChatExample& example) {
  read_tools(r, example);
  if (r.has("chat_template_kwargs")) {
    const Json& variables = r.at("chat_template_kwargs");
    MG_CHECK(variables.is_object(), "{}: 'chat_template_kwargs' is {}, not an object",
             example.place, Record::shortened(variables));
    example.variables = variables.as_object();
  }
}

// A conversation in any shape, with or without an answer.
ChatExample conversation_of(const Json& record, std::string place) {
  ChatExample example;
  example.place = std::move(place);
  const Record r(record, example.place);
  if (r.has("messages")) {
    example.messages = messages_of(r.list("messages"), example.place);
  } else if (r.has("conversations")) {
    for (const Json& one : r.list("conversations"))
      example.messages.push_back(message_of_speaker(one, example.place));
  } else if (r.has("prompt") && r.has("completion")) {
    read_prompt_and_completion(r, example);
  } else {
    MG_CHECK(r.has("instruction") && r.has("output"),
             "{}: a conversation has 'messages', 'conversations', 'prompt' with 'completion', or "
             "'instruction' with 'output'; this record has none of them",
             example.place);
    read_instruction(r, example);
  }
  read_template_inputs(r, example);
  return example;
}

// One side of a pair, after the prompt.
ChatExample side_of(const Record& r, const char* key) {
  ChatExample example;
  example.place = r.place();
  const Json& side = r.at(key);
  const Json* prompt = r.has("prompt") ? &r.at("prompt") : nullptr;
  if (side.is_string() && (prompt == nullptr || prompt->is_string())) {
    example.texts = {prompt == nullptr ? "" : prompt->as_string(), side.as_string()};
    return example;
  }
  MG_CHECK(side.is_array() && (prompt == nullptr || prompt->is_array()),
           "{}: 'chosen', 'rejected' and 'prompt' must all be texts, or all lists of messages",
           r.place());
  if (prompt != nullptr) example.messages = messages_of(prompt->as_array(), r.place());
  for (Json& one : messages_of(side.as_array(), r.place()))
    example.messages.push_back(std::move(one));
  read_template_inputs(r, example);
  return example;
}

void check_margin(const Record& r) {
  if (!r.has("margin")) return;
  const Json& margin = r.at("margin");
  MG_CHECK(margin.is_number() && std::isfinite(margin.as_number()),
           "{}: 'margin' is {}, not a finite number", r.place(), Record::shortened(margin));
}

// Length of the common beginning of two lists, or of two texts in bytes, which leaves something of
// both.
template <class List>
size_t common_beginning(const List& a, const List& b) {
  size_t common = 0;
  while (common + 1 < std::min(a.size(), b.size()) && a[common] == b[common]) ++common;
  return common;
}

// Takes the common beginning of two texts, at a whole character, as their prompt.
void split_texts(ChatExample& chosen, ChatExample& rejected) {
  const std::string a = chosen.texts->second, b = rejected.texts->second;
  size_t common = common_beginning(a, b);
  const auto is_inside = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; };
  while (common > 0 && (is_inside(a[common]) || is_inside(b[common]))) --common;
  if (common > 0 && a[common - 1] == ' ') --common;
  chosen.texts = {a.substr(0, common), a.substr(common)};
  rejected.texts = {b.substr(0, common), b.substr(common)};
}

void split_messages(ChatExample& chosen, ChatExample& rejected) {
  const size_t common = common_beginning(chosen.messages, rejected.messages);
  MG_CHECK(common > 0,
           "{}: the chosen and the rejected messages have no beginning in common that would be "
           "their prompt: give it as 'prompt'",
           chosen.place);
  chosen.prompt_messages = rejected.prompt_messages = common;
}

// Makes the last message the completion, unless the record says what is its prompt.
void split_last_message(ChatExample& example) {
  if (example.texts || example.prompt_messages) return;
  MG_CHECK(
      example.messages.size() > 1 && example.messages.back()["role"] == Json("assistant"),
      "{}: the last message, which is the completion, must be the assistant's and follow others",
      example.place);
  example.prompt_messages = example.messages.size() - 1;
}

bool label_of(const Record& r) {
  const Json& label = r.at("label");
  const bool number = label.is_integer() && (label.as_integer() == 0 || label.as_integer() == 1);
  MG_CHECK(label.is_bool() || number, "{}: 'label' is {}; it is true (desirable) or false",
           r.place(), Record::shortened(label));
  return number ? label.as_integer() == 1 : label.as_bool();
}

void check_completion(const ChatExample& example, std::string_view name) {
  const bool empty = example.texts ? example.texts->second.empty()
                                   : example.messages.size() <= *example.prompt_messages;
  MG_CHECK(!empty, "{}: {} is empty", example.place, name);
}

// Both sides of {"chosen", "rejected"}.
std::vector<ChatExample> chosen_and_rejected(const Record& r) {
  std::vector<ChatExample> pair = {side_of(r, "chosen"), side_of(r, "rejected")};
  MG_CHECK(pair[0].texts.has_value() == pair[1].texts.has_value(),
           "{}: 'chosen' and 'rejected' must both be texts, or both lists of messages", r.place());
  if (r.has("prompt")) {
    for (ChatExample& side : pair)
      if (!side.texts) side.prompt_messages = r.list("prompt").size();
  } else if (pair[0].texts) {
    split_texts(pair[0], pair[1]);
  } else {
    split_messages(pair[0], pair[1]);
  }
  return pair;
}

// A conversation, and what stands in place of its end.
std::vector<ChatExample> with_rejected(ChatExample chosen, const Record& r) {
  ChatExample rejected = chosen;
  if (r.has("rejected_messages")) {
    rejected.messages = messages_of(r.list("rejected_messages"), r.place());
    MG_CHECK(!chosen.texts && !chosen.prompt_messages,
             "{}: 'rejected_messages' needs 'messages', too", r.place());
    split_messages(chosen, rejected);
    return {std::move(chosen), std::move(rejected)};
  }
  split_last_message(chosen);
  if (chosen.texts) {
    rejected.texts->second = r.text("rejected_response");
  } else {
    rejected.prompt_messages = chosen.prompt_messages;
    rejected.messages.resize(*chosen.prompt_messages);
    rejected.messages.push_back(message("assistant", r.text("rejected_response")));
    MG_CHECK(!r.text("rejected_response").empty(), "{}: 'rejected_response' is empty", r.place());
  }
  return {std::move(chosen), std::move(rejected)};
}

}  // namespace

ChatExample example_of(const Json& record, std::string place) {
  ChatExample example = conversation_of(record, std::move(place));
  check_answers(example);
  return example;
}

std::vector<ChatExample> conversations_of(ChatExample example) {
  MG_CHECK(!example.texts && !example.prompt_messages,
           "{}: --sft reads conversations: give 'messages', or leave --sft out", example.place);
  std::vector<ChatExample> parts;
  for (Json& message : example.messages) {
    const bool begins = parts.empty() || message["role"] == Json("system");
    if (begins) {
      parts.emplace_back();
      parts.back().tools = example.tools;
      parts.back().variables = example.variables;
      parts.back().place = example.place;
    }
    parts.back().messages.push_back(std::move(message));
  }
  return parts;
}

ScoredText labelled_of(const Json& record, std::string place) {
  ScoredText scored;
  const Record r(record, place);
  MG_CHECK(r.has("label") || r.has("labels"), "{}: the record has no 'label'", place);
  const char* const key = r.has("label") ? "label" : "labels";
  scored.label = r.at(key);
  const auto names_class = [](const Json& label) {
    return (label.is_integer() && label.as_integer() >= 0) ||
           (label.is_string() && !label.as_string().empty());
  };
  const bool good = scored.label.is_array()
                        ? std::ranges::all_of(scored.label.as_array(), names_class)
                        : names_class(scored.label);
  MG_CHECK(good,
           "{}: '{}' is {}; it is the name of a class, or its index (0, 1, ...), or a list of them",
           place, key, Record::shortened(scored.label));
  MG_CHECK(r.has("text") || !r.has("text_pair"),
           "{}: the record has a 'text_pair', the second of two texts, but no 'text'", place);
  if (r.has("text_pair")) scored.second = r.text("text_pair");
  if (r.has("text")) {
    scored.text.texts = {"", r.text("text")};
    scored.text.place = std::move(place);
  } else {
    MG_CHECK(r.has("messages") || r.has("conversations") || r.has("prompt") || r.has("instruction"),
             "{}: the record has neither 'text' nor 'messages'", place);
    scored.text = conversation_of(record, std::move(place));
  }
  return scored;
}

TextPair pair_of(const Json& record, std::string place) {
  const Record r(record, place);
  MG_CHECK(r.has("chosen") && r.has("rejected"),
           "{}: a pair has 'chosen' and 'rejected'; this record lacks '{}'", place,
           r.has("chosen") ? "rejected" : "chosen");
  TextPair pair{.chosen = side_of(r, "chosen"), .rejected = side_of(r, "rejected")};
  check_margin(r);
  if (r.has("margin")) pair.margin = r.at("margin").as_number();
  return pair;
}

Preference preference_of(const Json& record, std::string place) {
  const Record r(record, place);
  Preference preference;
  const bool sides = r.has("chosen") || r.has("rejected"),
             replaced = r.has("rejected_response") || r.has("rejected_messages");
  if (sides) {
    MG_CHECK(r.has("chosen") && r.has("rejected"),
             "{}: a pair has 'chosen' and 'rejected'; this record lacks '{}'", place,
             r.has("chosen") ? "rejected" : "chosen");
    preference.completions = chosen_and_rejected(r);
  } else {
    MG_CHECK(replaced || r.has("label"),
             "{}: a preference has 'chosen' and 'rejected', or 'messages' with "
             "'rejected_response' or 'rejected_messages', or 'prompt', 'completion' and 'label'; "
             "this record has none of them",
             place);
    ChatExample whole = conversation_of(record, place);
    if (replaced) {
      preference.completions = with_rejected(std::move(whole), r);
    } else {
      split_last_message(whole);
      preference.completions = {std::move(whole)};
      preference.desirable = label_of(r);
    }
  }
  for (size_t i = 0; i < preference.completions.size(); ++i)
    check_completion(preference.completions[i], !preference.is_pair() ? "the completion"
                                                : i == 0              ? "the chosen completion"
                                                                      : "the rejected completion");
  check_margin(r);
  preference.has_margin = r.has("margin");
  return preference;
}

std::string source_of(const Json& record, const std::string& place) {
  for (const auto* key : {"source", "channel"})
    if (const Json* source = record.find(key); source != nullptr && source->is_string())
      if (!source->as_string().empty()) return source->as_string();
  const size_t element = place.rfind(kElement);  // of an array, or else a line
  return place.substr(0, element != place.npos ? element : place.rfind(':'));
}

std::vector<std::string> example_files(const std::vector<std::string>& paths) {
  for (const std::string& path : paths)
    MG_CHECK(path.find_first_of("*?[{") != path.npos || fs::exists(path),
             "{} does not exist or cannot be read (--data-path)", path);
  std::vector<std::string> files;
  for (const data::InputEntry& entry : data::list_inputs(paths, data::TextKind::json_lines)) {
    MG_CHECK(!entry.path.ends_with(".parquet"),
             "{} is a Parquet file: convert it to JSON lines, for example with "
             "datasets.Dataset.from_parquet(FILE).to_json(OUTPUT)",
             entry.path);
    files.push_back(entry.path);
  }
  return files;
}

void read_records(const std::vector<std::string>& paths,
                  const std::function<bool(Json record, std::string place)>& f) {
  for (const std::string& path : example_files(paths)) {
    data::InputFile file(path);
    std::string line;
    bool first = true;
    for (int64_t number = 1; file.next_line(line); ++number, line.clear()) {
      if (data::is_blank(line)) continue;
      const size_t begin = line.find_first_not_of(" \t\r");
      if (std::exchange(first, false) && line[begin] == '[') {
        if (!read_array(path, line + "\n" + file.read_rest(), f)) return;
        break;
      }
      std::string place = fmt::format("{}:{}", path, number);
      Json record = data::parse_record(line, place);
      if (!f(std::move(record), std::move(place))) return;
    }
  }
}

}  // namespace megatron::corpus
