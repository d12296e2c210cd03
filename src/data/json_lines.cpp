#include "data/json_lines.h"

#include <simdjson.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "data/json_record.h"

namespace megatron::data {

static_assert(LineBlock::kPadding >= simdjson::SIMDJSON_PADDING);

// The DOM parser checks the whole line and picks its vector instructions at run time; the
// on-demand one does neither.
struct JsonLineParser::State {
  simdjson::dom::parser parser;
  std::vector<bool> found;
  Json whole;  // a line that simdjson rejects but json_record.h accepts
};

namespace {

[[noreturn]] void fail_type(std::string_view key) {
  fail("the value of '{}' is neither a string nor a list of strings", key);
}
[[noreturn]] void fail_missing(std::string_view key) {
  fail("the key '{}' is missing (--json-keys or --json-key chooses the keys)", key);
}
[[noreturn]] void fail_item(std::string_view key) {
  fail("the list '{}' contains something that is not a string", key);
}

void take_texts(simdjson::dom::element value, std::string_view key,
                std::vector<std::string_view>& texts) {
  texts.clear();
  if (value.is_string()) return texts.push_back(value.get_string());
  if (!value.is_array()) fail_type(key);
  const simdjson::dom::array items = value.get_array();
  for (const simdjson::dom::element item : items) {
    if (!item.is_string()) fail_item(key);
    texts.push_back(item.get_string());
  }
}

}  // namespace

JsonLineParser::JsonLineParser(std::vector<std::string> keys)
    : keys_(std::move(keys)), texts_(keys_.size()), state_(std::make_unique<State>()) {}

JsonLineParser::~JsonLineParser() = default;

std::span<const std::vector<std::string_view>> JsonLineParser::parse(std::string_view line) {
  MG_CHECK(!line.starts_with("\xef\xbb\xbf"),
           "the line begins with a byte-order mark, which JSON does not allow; remove it: "
           "sed -i '1s/^\\xEF\\xBB\\xBF//' FILE");
  simdjson::dom::element document;
  const simdjson::error_code error =
      state_->parser.parse(line.data(), line.size(), false).get(document);
  if (error != simdjson::SUCCESS) {
    ReadRecord record = read_record(line);
    MG_CHECK(record.value.has_value(), "bad JSON at byte {} of the line: {}", record.end,
             simdjson::error_message(error));
    state_->whole = std::move(*record.value);
    take_from_whole();
    return texts_;
  }
  MG_CHECK(document.is_object(), "expected one JSON object per line");
  state_->found.assign(keys_.size(), false);
  const simdjson::dom::object object = document.get_object();
  for (const auto field : object) {
    const auto key = std::find(keys_.begin(), keys_.end(), field.key);
    if (key == keys_.end()) continue;
    const auto i = static_cast<size_t>(key - keys_.begin());
    take_texts(field.value, *key, texts_[i]);
    state_->found[i] = true;
  }
  for (size_t i = 0; i < keys_.size(); ++i)
    if (!state_->found[i]) fail_missing(keys_[i]);
  return texts_;
}

void JsonLineParser::take_from_whole() {
  MG_CHECK(state_->whole.is_object(), "expected one JSON object per line");
  for (size_t i = 0; i < keys_.size(); ++i) {
    const Json* const value = state_->whole.find(keys_[i]);
    if (value == nullptr) fail_missing(keys_[i]);
    texts_[i].clear();
    const auto take = [&](const std::string& text) {
      check_text(text, "'" + keys_[i] + "'");
      texts_[i].push_back(text);
    };
    if (value->is_string()) {
      take(value->as_string());
      continue;
    }
    if (!value->is_array()) fail_type(keys_[i]);
    for (const Json& item : value->as_array()) {
      if (!item.is_string()) fail_item(keys_[i]);
      take(item.as_string());
    }
  }
}

JsonLinesReader::JsonLinesReader(const std::string& path, std::vector<std::string> keys)
    : file_(path), parser_(std::move(keys)) {}

bool JsonLinesReader::next(JsonRecord& record) {
  do {
    if (!file_.next_line(line_)) return false;
  } while (is_blank(line_));
  record.line = file_.line_number();
  line_.reserve(line_.size() + LineBlock::kPadding);
  try {
    const auto values = parser_.parse(line_);
    record.values.resize(values.size());
    for (size_t i = 0; i < values.size(); ++i)
      record.values[i].assign(values[i].begin(), values[i].end());
  } catch (const Error& error) {
    fail("{}:{}: {}", file_.path(), record.line, error.what());
  }
  return true;
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

}  // namespace megatron::data
