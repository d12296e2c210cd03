#include "tokenizers/chat/chat_template.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <string_view>

#include "base/error.h"
#include "base/files.h"
#include "base/lfs_pointer.h"
#include "jinja/objects.h"
#include "jinja/unicode.h"

namespace megatron::tokenizers {
namespace {

namespace fs = std::filesystem;

// Marks the end of the message to be continued while the template runs.
constexpr std::string_view kMark = "CONTINUE_FINAL_MESSAGE_TAG ";
constexpr std::string_view kBareMark = kMark.substr(0, kMark.size() - 1);

constexpr std::array kSpecialNames = {"bos_token", "eos_token", "unk_token", "sep_token",
                                      "pad_token", "cls_token", "mask_token"};

std::tm calendar(std::chrono::local_seconds now) {
  using namespace std::chrono;
  const auto day = floor<days>(now);
  const year_month_day date(day);
  const hh_mm_ss<seconds> time(now - day);
  std::tm result{};
  result.tm_year = static_cast<int>(date.year()) - 1900;
  result.tm_mon = static_cast<int>(static_cast<unsigned>(date.month())) - 1;
  result.tm_mday = static_cast<int>(static_cast<unsigned>(date.day()));
  result.tm_hour = static_cast<int>(time.hours().count());
  result.tm_min = static_cast<int>(time.minutes().count());
  result.tm_sec = static_cast<int>(time.seconds().count());
  result.tm_wday = static_cast<int>(weekday(day).c_encoding());
  result.tm_yday = static_cast<int>((day - local_days(date.year() / January / 1)).count());
  result.tm_isdst = -1;
  return result;
}

// strftime as in Python's datetime: %f is microseconds; %z and %Z are empty, because the clock has
// no time zone.
std::string format_time(std::string_view format, std::chrono::local_seconds now) {
  std::string prepared = "|";  // distinguishes an empty result from a missing one
  for (size_t i = 0; i < format.size(); ++i) {
    const char next = format[i] == '%' && i + 1 < format.size() ? format[i + 1] : '\0';
    if (next == 'f') prepared += "000000";
    if (next == '%') prepared += "%%";
    if (next == 'f' || next == '%' || next == 'z' || next == 'Z') {
      ++i;
    } else {
      MG_CHECK(format[i] != '\0', "strftime_now: the format contains a zero byte");
      prepared += format[i];
    }
  }
  const std::tm fields = calendar(now);
  std::string result(prepared.size() * 8 + 256, '\0');
  const size_t size = std::strftime(result.data(), result.size(), prepared.c_str(), &fields);
  MG_CHECK(size > 0, "strftime_now('{}') produces a string that is too long", format.substr(0, 80));
  return result.substr(1, size - 1);
}

struct Clock : jinja::Object {
  explicit Clock(std::chrono::local_seconds time) : now(time) {}
  std::string type_name() const override { return "function"; }
  bool callable() const override { return true; }
  jinja::Value call(jinja::Call& call) override {
    const jinja::Parameters p(call, "strftime_now", {"format"}, 1);
    call.budget.spend_bytes(p.text(0).size() * 9);  // space for the result
    return jinja::Value::text(format_time(p.text(0), now), &call.budget);
  }

  std::chrono::local_seconds now;
};

// Returns a message without its null members, and with its reasoning under each name that templates
// read: `thinking` comes first, `reasoning_content` last if it was absent.
Json::Object prepared(const Json& message) {
  Json::Object members;
  for (const auto& [key, value] : message.as_object())
    if (!value.is_null()) members.emplace_back(key, value);
  const auto find = [&](const char* key) {
    return std::find_if(members.begin(), members.end(),
                        [&](const Json::Member& member) { return member.first == key; });
  };
  for (const char* name : {"thinking", "reasoning_content", "reasoning"}) {
    const auto found = find(name);
    if (found == members.end()) continue;
    const Json thought = found->second;
    if (std::string_view(name) == "thinking") members.erase(found);
    members.emplace(members.begin(), "thinking", thought);
    if (find("reasoning_content") == members.end())
      members.emplace_back("reasoning_content", thought);
    break;
  }
  return members;
}

// The text of a message to be continued: its member, or in a list of parts the last one with a
// text.
Json& continued_text(Json::Object& message, const std::string& member) {
  for (auto& [key, value] : message) {
    if (key != member) continue;
    Json* text = &value;
    if (value.is_array()) {
      text = nullptr;
      for (Json& part : value.as_array()) {
        if (!part.is_object()) continue;
        for (auto& [name, content] : part.as_object())
          if (name == "text") text = &content;
      }
    }
    MG_CHECK(text != nullptr && text->is_string(),
             "the last message cannot be continued: its '{}' contains no text", member);
    return *text;
  }
  fail("the last message cannot be continued: it has no '{}'", member);
}

// Cuts the rendered text where the continued message ends.
void cut_at_mark(RenderedChat& chat, const std::string& message) {
  const size_t mark = chat.text.rfind(kBareMark);
  const std::string_view words = jinja::strip_space(message, true, true);
  MG_CHECK(mark != std::string::npos && chat.text.find(words) != std::string::npos,
           "the last message cannot be continued: the template does not render it verbatim");
  const bool whole = chat.text.compare(mark, kMark.size(), kMark) == 0;
  chat.text.resize(mark);
  if (!whole) chat.text.resize(jinja::strip_space(chat.text, false, true).size());
  const int64_t length = count_characters(chat.text);
  for (auto& [begin, end] : chat.generation) {
    begin = std::min(begin, length);
    end = std::min(end, length);
  }
}

std::string token_text(const Json& token, const std::string& name, const std::string& origin) {
  const Json* content = token.is_object() ? token.find("content") : &token;
  MG_CHECK(content != nullptr && content->is_string(),
           "{}: {} must be a string, or an object with a string 'content'", origin, name);
  return content->as_string();
}

Json list_of_objects(const Json::Array& elements, const char* what) {
  for (size_t i = 0; i < elements.size(); ++i) {
    MG_CHECK(elements[i].is_object(), "{}[{}] is not a JSON object", what, i);
  }
  return Json(elements);
}

}  // namespace

void ChatTemplate::add_template(const std::string& name, std::string_view source,
                                const std::string& origin) {
  const std::string shown = name == "default" ? origin : origin + ":" + name;
  for (const Named& other : templates_)
    MG_CHECK(other.name != name, "{}: two chat templates are named '{}'", origin, name);
  templates_.push_back({name, std::string(source), jinja::Template::parse(source, shown)});
}

void ChatTemplate::set_template(std::string source, std::string name) {
  templates_.clear();
  jinja::Template parsed = jinja::Template::parse(source, std::move(name));
  templates_.push_back({"default", std::move(source), std::move(parsed)});
}

void ChatTemplate::read_special_tokens(const Json& config, const std::string& origin) {
  const auto add = [&](const std::string& name, const Json& token) {
    if (token.is_null()) return;
    const bool known = std::any_of(special_tokens_.begin(), special_tokens_.end(),
                                   [&](const auto& other) { return other.first == name; });
    if (!known) special_tokens_.emplace_back(name, token_text(token, name, origin));
  };
  for (const char* name : kSpecialNames)
    if (const Json* token = config.find(name)) add(name, *token);
  const Json* extra = config.find("extra_special_tokens");
  if (extra == nullptr || !extra->is_object()) return;
  for (const auto& [name, token] : extra->as_object()) add(name, token);
}

void ChatTemplate::read_config(const Json& config, const std::string& origin) {
  MG_CHECK(config.is_object(), "{}: not a JSON object", origin);
  read_special_tokens(config, origin);
  const Json* source = config.find("chat_template");
  if (source == nullptr || source->is_null() || !templates_.empty()) return;
  if (source->is_string()) return add_template("default", source->as_string(), origin);
  MG_CHECK(source->is_array(),
           "{}: chat_template must be a string, or a list of {{name, "
           "template}}",
           origin);
  for (const Json& entry : source->as_array()) {
    const Json* name = entry.is_object() ? entry.find("name") : nullptr;
    const Json* text = entry.is_object() ? entry.find("template") : nullptr;
    MG_CHECK(name != nullptr && name->is_string() && text != nullptr && text->is_string(),
             "{}: an entry of chat_template must have the strings 'name' and 'template'", origin);
    add_template(name->as_string(), text->as_string(), origin);
  }
}

void ChatTemplate::read_template_files(const std::string& directory) {
  const fs::path base(directory);
  const std::string alone = (base / "chat_template.jinja").string();
  if (fs::exists(alone)) {
    const std::string text = read_file(alone);
    refuse_lfs_pointer(text, alone);
    add_template("default", text, alone);
  }
  const fs::path more = base / "additional_chat_templates";
  std::vector<fs::path> files;
  if (fs::is_directory(more)) {
    for (const auto& entry : fs::directory_iterator(more))
      if (entry.path().extension() == ".jinja") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files)
    add_template(file.stem().string(), read_file(file.string()), file.string());
}

ChatTemplate ChatTemplate::load(const std::string& path) {
  ChatTemplate result;
  const fs::path base(path);
  if (!fs::is_directory(base)) {
    if (base.extension() == ".jinja") {
      result.add_template("default", read_file(path), path);
    } else {
      result.read_config(Json::read(path), path);
    }
    return result;
  }
  result.read_template_files(path);
  const std::string alone = (base / "chat_template.json").string();
  const std::string config = (base / "tokenizer_config.json").string();
  const std::string special = (base / "special_tokens_map.json").string();
  if (result.empty() && fs::exists(alone)) result.read_config(Json::read(alone), alone);
  if (fs::exists(config)) result.read_config(Json::read(config), config);
  if (fs::exists(special)) result.read_special_tokens(Json::read(special), special);
  return result;
}

const ChatTemplate::Named& ChatTemplate::choose(const std::string& name, bool with_tools) const {
  MG_CHECK(!templates_.empty(),
           "the model directory has no chat template: neither chat_template.jinja, "
           "chat_template.json nor chat_template in tokenizer_config.json; give one with "
           "--chat-template FILE");
  const auto find = [&](const std::string& wanted) -> const Named* {
    for (const Named& entry : templates_)
      if (entry.name == wanted) return &entry;
    return nullptr;
  };
  const Named* found = nullptr;
  if (!name.empty()) {
    found = find(name);
  } else {
    if (with_tools) found = find("tool_use");
    if (found == nullptr) found = find("default");
  }
  if (found != nullptr) return *found;
  std::string names;
  for (const Named& entry : templates_) names += (names.empty() ? "" : ", ") + entry.name;
  fail("there is no chat template named '{}'; choose one with --template: {}",
       name.empty() ? "default" : name, names);
}

bool ChatTemplate::reads(const std::string& variable, bool with_tools,
                         const std::string& name) const {
  return choose(name, with_tools).parsed.reads(variable);
}

bool ChatTemplate::marks_generation(bool with_tools) const {
  return choose("", with_tools).parsed.marks_generation();
}

const std::string& ChatTemplate::source(bool with_tools, const std::string& name) const {
  return choose(name, with_tools).source;
}

RenderedChat ChatTemplate::render(const Chat& chat, const std::string& name) const {
  using jinja::Value;
  MG_CHECK(!chat.messages.empty(), "a chat needs at least one message");
  MG_CHECK(chat.continued.empty() || !chat.add_generation_prompt,
           "continuing the last message and adding a generation prompt are mutually exclusive");
  const jinja::Template& chosen = choose(name, chat.tools.has_value()).parsed;
  Json::Array messages;
  list_of_objects(chat.messages, "messages");
  for (const Json& message : chat.messages) messages.emplace_back(prepared(message));
  std::string continued;
  if (!chat.continued.empty()) {
    Json& text = continued_text(messages.back().as_object(), chat.continued);
    continued = text.as_string();
    text = Json(continued + std::string(kMark));
  }
  jinja::Variables variables;
  for (const auto& [key, token] : special_tokens_) variables.emplace_back(key, Value::text(token));
  variables.emplace_back("strftime_now", Value::object(std::make_shared<Clock>(chat.now)));
  const auto set = [&](const std::string& key, Value value) {
    for (auto& [other, old] : variables) {
      if (other != key) continue;
      old = std::move(value);
      return;
    }
    variables.emplace_back(key, std::move(value));
  };
  for (const auto& [key, value] : chat.variables) set(key, Value::from(value));
  set("messages", Value::from(Json(std::move(messages))));
  set("tools", chat.tools ? Value::from(list_of_objects(*chat.tools, "tools")) : Value());
  set("documents",
      chat.documents ? Value::from(list_of_objects(*chat.documents, "documents")) : Value());
  set("add_generation_prompt", Value::boolean(chat.add_generation_prompt));
  jinja::Rendering rendering = chosen.render(variables, chat.limits);
  RenderedChat result{std::move(rendering.text), std::move(rendering.generation)};
  if (!chat.continued.empty()) cut_at_mark(result, continued);
  return result;
}

std::chrono::local_seconds parse_clock(const std::string& text) {
  using namespace std::chrono;
  int year_number = 0, month_number = 0, day_number = 0, hour = 0, minute = 0, second = 0;
  char between = ' ';
  int end = 0;
  const int read =
      std::sscanf(text.c_str(), "%4d-%2d-%2d%n%c%2d:%2d:%2d%n", &year_number, &month_number,
                  &day_number, &end, &between, &hour, &minute, &second, &end);
  const auto given = year{year_number} / month{static_cast<unsigned>(std::max(month_number, 0))} /
                     day{static_cast<unsigned>(std::max(day_number, 0))};
  const bool whole = (read == 3 || (read == 7 && (between == ' ' || between == 'T'))) &&
                     static_cast<size_t>(end) == text.size();
  MG_CHECK(whole && given.ok() && hour >= 0 && hour < 24 && minute >= 0 && minute < 60 &&
               second >= 0 && second < 60,
           "'{}' is not a date and time; write it as \"2025-03-09 07:05:01\" or \"2025-03-09\"",
           text);
  return local_days(given) + hours(hour) + minutes(minute) + seconds(second);
}

std::chrono::local_seconds local_now() {
  using namespace std::chrono;
  const std::time_t now = std::time(nullptr);
  std::tm fields{};
  localtime_r(&now, &fields);
  const auto date = year{fields.tm_year + 1900} / (fields.tm_mon + 1) / fields.tm_mday;
  return local_days(date) + hours(fields.tm_hour) + minutes(fields.tm_min) +
         seconds(std::min(fields.tm_sec, 59));
}

}  // namespace megatron::tokenizers
