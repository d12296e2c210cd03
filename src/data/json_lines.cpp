#include "data/json_lines.h"

#include <simdjson.h>

#include <algorithm>

#include "base/error.h"

namespace megatron::data {
namespace {

std::string text_of(simdjson::dom::element value) {
  return std::string(std::string_view(value.get_string()));
}

}  // namespace

// The DOM parser checks the whole line and picks its vector instructions at run time; the
// on-demand one does neither.
struct JsonLinesReader::Parser {
  simdjson::dom::parser parser;
};

JsonLinesReader::JsonLinesReader(const std::string& path, std::vector<std::string> keys)
    : file_(path), keys_(std::move(keys)), parser_(std::make_unique<Parser>()) {}

JsonLinesReader::~JsonLinesReader() = default;

bool JsonLinesReader::next(JsonRecord& record) {
  do {
    if (!file_.next_line(line_)) return false;
  } while (line_.find_first_not_of(" \t\r") == line_.npos);
  record.line = file_.line_number();
  record.values.resize(keys_.size());
  try {
    parse(line_, record);
  } catch (const simdjson::simdjson_error& error) {
    fail("{}:{}: bad JSON: {}", file_.path(), record.line, error.what());
  }
  return true;
}

void JsonLinesReader::parse(std::string& line, JsonRecord& record) {
  line.reserve(line.size() + simdjson::SIMDJSON_PADDING);
  const simdjson::dom::element document = parser_->parser.parse(line.data(), line.size(), false);
  MG_CHECK(document.is_object(), "{}:{}: expected one JSON object a line", file_.path(),
           record.line);
  std::vector<bool> found(keys_.size());
  const simdjson::dom::object object = document.get_object();
  for (const auto field : object) {
    const auto key = std::find(keys_.begin(), keys_.end(), field.key);
    if (key == keys_.end()) continue;
    const auto i = static_cast<size_t>(key - keys_.begin());
    found[i] = true;
    auto& texts = record.values[i];
    texts.clear();
    MG_CHECK(field.value.is_string() || field.value.is_array(),
             "{}:{}: the value of '{}' is neither a text nor a list of texts", file_.path(),
             record.line, keys_[i]);
    if (field.value.is_string()) {
      texts.push_back(text_of(field.value));
      continue;
    }
    const simdjson::dom::array items = field.value.get_array();
    for (const simdjson::dom::element item : items) {
      MG_CHECK(item.is_string(), "{}:{}: the list of '{}' holds something that is not a text",
               file_.path(), record.line, keys_[i]);
      texts.push_back(text_of(item));
    }
  }
  for (size_t i = 0; i < keys_.size(); ++i) {
    MG_CHECK(found[i], "{}:{}: the key '{}' is missing (--json-keys)", file_.path(), record.line,
             keys_[i]);
  }
}

}  // namespace megatron::data
