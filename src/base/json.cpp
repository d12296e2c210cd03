#include "base/json.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "base/files.h"
#include "base/lfs_pointer.h"
#include "base/shorten.h"
#include "base/utf8.h"

namespace megatron {
namespace {

constexpr size_t kMaximumDepth = 512;
constexpr size_t kMaximumDigits = 4300;  // limit on the digits of an integer, as in Python
constexpr int kOutOfRange = 406;         // the parser's id for an out-of-range error

// long double can hold every integer with kMaximumDigits digits, so the parser does not reject them
// as out of range.
using Parser =
    nlohmann::basic_json<std::map, std::vector, std::string, bool, int64_t, uint64_t, long double>;
static_assert(std::numeric_limits<long double>::max_exponent10 > kMaximumDigits);

const char* kind(const Json& value) {
  if (value.is_null()) return "null";
  if (value.is_bool()) return "a boolean";
  if (value.is_integer() || value.is_wide_integer()) return "an integer";
  if (value.is_number()) return "a floating-point number";
  if (value.is_string()) return "a string";
  return value.is_array() ? "an array" : "an object";
}

[[noreturn]] void fail_at(std::string_view text, std::string_view origin, size_t position,
                          std::string_view reason) {
  const std::string_view before = text.substr(0, std::min(position, text.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t line_begin = before.rfind('\n') + 1;  // npos + 1 is 0
  const auto column = 1 + count_characters(before.substr(line_begin));
  fail("{}, line {}, column {}: {}", origin, line, column, reason);
}

// Reads characters and stores the position in a cursor that the event handler also sees.
class CursorIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CursorIterator(const char* at, size_t* cursor) : at_(at), cursor_(cursor) {}
  const char& operator*() const { return *at_; }
  CursorIterator& operator++() {
    ++at_;
    ++*cursor_;
    return *this;
  }
  bool operator==(const CursorIterator& other) const { return at_ == other.at_; }

 private:
  const char* at_;
  size_t* cursor_;
};

// Builds a value from the parser's events. The stack is on the heap and its depth is limited.
class Builder {
 public:
  Builder(std::string_view text, std::string_view origin) : text_(text), origin_(origin) {}

  bool null() { return add(Json()); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(int64_t value) { return add(value); }
  bool number_unsigned(uint64_t value) { return add(value); }
  bool number_float(long double, const std::string& text) {
    if (text.find_first_of(".eE") == text.npos) {
      if (text.size() - (text[0] == '-' ? 1 : 0) > kMaximumDigits) fail_at_number(text);
      return add(Json::wide_integer(text));
    }
    const double value = std::strtod(text.c_str(), nullptr);
    if (!std::isfinite(value)) fail_at_number(text);
    return add(value);
  }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(Parser::binary_t&) { return false; }
  bool start_object(size_t) { return open(true); }
  bool start_array(size_t) { return open(false); }
  bool key(std::string& name) {
    // The cursor is after the closing quote, whatever escapes the name was written with.
    stack_.back().ends.push_back(cursor);
    stack_.back().object.emplace_back().first = std::move(name);
    return true;
  }
  bool end_object() {
    check_keys(stack_.back());
    Json value(std::move(stack_.back().object));
    stack_.pop_back();
    return add(std::move(value));
  }
  bool end_array() {
    Json value(std::move(stack_.back().array));
    stack_.pop_back();
    return add(std::move(value));
  }
  bool parse_error(size_t position, const std::string& token, const Parser::exception& error) {
    if (error.id == kOutOfRange) fail_at_number(token);
    std::string_view reason = error.what();
    if (const size_t end = reason.find("] "); end != reason.npos) reason.remove_prefix(end + 2);
    // Removes the prefix "parse error at line L, column C: " and adds the position of the last
    // character read.
    if (reason.starts_with("parse error at ")) reason.remove_prefix(reason.find(": ") + 2);
    fail_at(text_, origin_, position - std::min<size_t>(position, 1), reason);
  }

  Json result;
  size_t cursor = 0;

 private:
  struct Frame {
    bool is_object;
    Json::Array array;
    Json::Object object;
    std::vector<size_t> ends;  // end of each key of the object in the text
  };

  // The cursor is after the character that ended the number, or at the end of the text.
  [[noreturn]] void fail_at_number(const std::string& number) const {
    const size_t begin = text_.rfind(number, cursor);
    if (number.find_first_of(".eE") == number.npos)
      fail_at(text_, origin_, begin,
              fmt::format("the integer {} has {} digits; the limit is {}", shortened(number, 40),
                          number.size() - (number[0] == '-' ? 1 : 0), kMaximumDigits));
    fail_at(text_, origin_, begin,
            fmt::format("the number {} is outside of [-1.8e308, 1.8e308]", shortened(number, 40)));
  }

  bool open(bool is_object) {
    if (stack_.size() == kMaximumDepth) {
      fail_at(text_, origin_, cursor - 1, fmt::format("nested deeper than {}", kMaximumDepth));
    }
    stack_.push_back({is_object, {}, {}, {}});
    return true;
  }

  bool add(Json value) {
    if (stack_.empty()) {
      result = std::move(value);
    } else if (stack_.back().is_object) {
      stack_.back().object.back().second = std::move(value);
    } else {
      stack_.back().array.push_back(std::move(value));
    }
    return true;
  }

  void check_keys(const Frame& frame) {
    const Json::Object& object = frame.object;
    order_.resize(object.size());
    std::iota(order_.begin(), order_.end(), size_t{0});
    std::sort(order_.begin(), order_.end(), [&](size_t a, size_t b) {
      const int c = object[a].first.compare(object[b].first);
      return c != 0 ? c < 0 : a < b;
    });
    for (size_t i = 1; i < order_.size(); ++i) {
      const std::string& name = object[order_[i]].first;
      if (name != object[order_[i - 1]].first) continue;
      fail_at(text_, origin_, frame.ends[order_[i]] - 1,
              fmt::format("the key '{}' is repeated in one object", name));
    }
  }

  std::string_view text_, origin_;
  std::vector<Frame> stack_;
  std::vector<size_t> order_;
};

class Writer {
 public:
  Writer(int indent, bool ensure_ascii) : indent_(indent), ensure_ascii_(ensure_ascii) {}

  void write(const Json& value) {
    if (value.is_null()) out += "null";
    else if (value.is_bool()) out += value.as_bool() ? "true" : "false";
    else if (value.is_integer()) out += fmt::format("{}", value.as_integer());
    else if (value.is_wide_integer()) out += value.wide_digits();
    else if (value.is_number()) write_double(value.as_number());
    else if (value.is_string()) write_string(value.as_string());
    else if (value.is_array()) write_array(value.as_array());
    else write_object(value.as_object());
  }

  std::string out;

 private:
  void write_double(double value) {
    MG_CHECK(std::isfinite(value), "cannot write {} as JSON: only finite numbers can be written",
             value);
    const std::string digits = fmt::format("{}", value);
    out += digits;
    if (digits.find_first_of(".e") == digits.npos) out += ".0";
  }

  void write_string(std::string_view text) {
    const size_t bad = first_invalid_byte(text);
    MG_CHECK(bad == text.size(), "cannot write a string as JSON: byte {} (0x{:02x}) is not UTF-8",
             bad, static_cast<unsigned char>(text[bad]));
    out += '"';
    for (size_t i = 0; i < text.size();) {
      const size_t begin = i;
      const char32_t code = next_character(text, i);
      if (code == '"') out += "\\\"";
      else if (code == '\\') out += "\\\\";
      else if (code == '\n') out += "\\n";
      else if (code == '\r') out += "\\r";
      else if (code == '\t') out += "\\t";
      else if (code == '\f') out += "\\f";
      else if (code == '\b') out += "\\b";
      else if (code < 0x20 || (ensure_ascii_ && code >= 0x7f)) out += json_escape(code);
      else out += text.substr(begin, i - begin);
    }
    out += '"';
  }

  void write_array(const Json::Array& array) {
    out += '[';
    for (size_t i = 0; i < array.size(); ++i) {
      begin_item(i);
      write(array[i]);
    }
    end(!array.empty(), ']');
  }

  void write_object(const Json::Object& object) {
    out += '{';
    for (size_t i = 0; i < object.size(); ++i) {
      begin_item(i);
      write_string(object[i].first);
      out += ": ";
      write(object[i].second);
    }
    end(!object.empty(), '}');
  }

  void begin_item(size_t i) {
    if (i == 0) ++depth_;
    if (i > 0) out += indent_ < 0 ? ", " : ",";
    new_line();
  }

  void end(bool has_items, char bracket) {
    if (has_items) {
      --depth_;
      new_line();
    }
    out += bracket;
  }

  void new_line() {
    if (indent_ < 0) return;
    out += '\n';
    out.append(static_cast<size_t>(indent_) * depth_, ' ');
  }

  int indent_;
  bool ensure_ascii_;
  size_t depth_ = 0;
};

}  // namespace

Json::Json() = default;
Json::Json(const Json&) = default;
Json::Json(Json&&) noexcept = default;
Json& Json::operator=(const Json&) = default;
Json& Json::operator=(Json&&) noexcept = default;
Json::~Json() = default;
bool Json::operator==(const Json&) const = default;

Json::Json(uint64_t value) : value_(static_cast<int64_t>(value)) {
  if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    value_ = WideInteger{fmt::format("{}", value)};
}

Json Json::wide_integer(std::string digits) {
  Json json;
  json.value_ = WideInteger{std::move(digits)};
  return json;
}

bool Json::as_bool() const {
  MG_CHECK(is_bool(), "expected a boolean, found {}", kind(*this));
  return std::get<bool>(value_);
}

int64_t Json::as_integer() const {
  if (is_integer()) return std::get<int64_t>(value_);
  MG_CHECK(is_number(), "expected an integer, found {}", kind(*this));
  MG_CHECK(!is_wide_integer(), "the integer {} does not fit in 64 bits",
           shortened(wide_digits(), 40));
  const double value = std::get<double>(value_);
  MG_CHECK(value == std::trunc(value), "expected an integer, found {}", value);
  // -2^63 is excluded as well: a double of that value may represent a smaller integer of the text.
  MG_CHECK(value > -0x1p63 && value < 0x1p63, "the integer {} does not fit in 64 bits", value);
  return static_cast<int64_t>(value);
}

double Json::as_number() const {
  if (is_integer()) return static_cast<double>(std::get<int64_t>(value_));
  if (is_wide_integer()) {
    const double value = std::strtod(wide_digits().c_str(), nullptr);
    MG_CHECK(std::isfinite(value), "the integer {} is outside of [-1.8e308, 1.8e308]",
             shortened(wide_digits(), 40));
    return value;
  }
  MG_CHECK(is_number(), "expected a number, found {}", kind(*this));
  return std::get<double>(value_);
}

const std::string& Json::wide_digits() const {
  MG_CHECK(is_wide_integer(), "expected an integer that needs more than 64 bits, found {}",
           kind(*this));
  return std::get<WideInteger>(value_).digits;
}

const std::string& Json::as_string() const {
  MG_CHECK(is_string(), "expected a string, found {}", kind(*this));
  return std::get<std::string>(value_);
}

const Json::Array& Json::as_array() const {
  MG_CHECK(is_array(), "expected an array, found {}", kind(*this));
  return std::get<Array>(value_);
}

Json::Array& Json::as_array() {
  MG_CHECK(is_array(), "expected an array, found {}", kind(*this));
  return std::get<Array>(value_);
}

const Json::Object& Json::as_object() const {
  MG_CHECK(is_object(), "expected an object, found {}", kind(*this));
  return std::get<Object>(value_);
}

Json::Object& Json::as_object() {
  MG_CHECK(is_object(), "expected an object, found {}", kind(*this));
  return std::get<Object>(value_);
}

const Json* Json::find(std::string_view key) const {
  for (const auto& [name, value] : as_object()) {
    if (name == key) return &value;
  }
  return nullptr;
}

const Json& Json::operator[](std::string_view key) const {
  const Json* value = find(key);
  MG_CHECK(value != nullptr, "the key '{}' is missing", key);
  return *value;
}

void Json::set(std::string_view key, Json value) {
  for (auto& [name, old] : as_object()) {
    if (name == key) {
      old = std::move(value);
      return;
    }
  }
  as_object().emplace_back(std::string(key), std::move(value));
}

Json Json::parse(std::string_view text, std::string_view origin) {
  // Without this check the parser would take a zero byte as the end of the text.
  if (const size_t zero = text.find('\0'); zero != text.npos) {
    fail_at(text, origin, zero, "a zero byte");
  }
  Builder builder(text, origin);
  const CursorIterator begin(text.data(), &builder.cursor);
  const CursorIterator end(text.data() + text.size(), &builder.cursor);
  const bool good = Parser::sax_parse(begin, end, &builder);
  MG_ASSERT(good);
  return std::move(builder.result);
}

Json Json::read(const std::string& path) {
  const std::string text = read_file(path);
  refuse_lfs_pointer(text, path);
  return parse(text, path);
}

namespace {

std::string with_infinities_as_objects(std::string_view text) {
  constexpr std::string_view kInfinity = "Infinity", kObject = R"({"__float__": "Infinity"})";
  std::string out;
  bool quoted = false;
  for (size_t at = 0; at < text.size(); ++at) {
    if (!quoted && text.substr(at).starts_with(kInfinity) && (at == 0 || text[at - 1] != '-')) {
      out += kObject;
      at += kInfinity.size() - 1;
      continue;
    }
    if (text[at] == '"') quoted = !quoted;
    out += text[at];
    if (quoted && text[at] == '\\' && at + 1 < text.size()) out += text[++at];
  }
  return out;
}

}  // namespace

Json Json::read_python(const std::string& path) {
  const std::string text = read_file(path);
  refuse_lfs_pointer(text, path);
  return text.find("Infinity") == text.npos ? parse(text, path)
                                            : parse(with_infinities_as_objects(text), path);
}

std::string Json::dump(int indent, bool ensure_ascii) const {
  Writer writer(indent, ensure_ascii);
  writer.write(*this);
  return std::move(writer.out);
}

}  // namespace megatron
