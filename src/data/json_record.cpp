#include "data/json_record.h"

#include <charconv>
#include <cstdlib>
#include <limits>
#include <unordered_map>

#include "base/error.h"
#include "base/utf8.h"

namespace megatron::data {
namespace {

constexpr int kMaximumDepth = 1024;  // limit of simdjson

// Each member function reads one item at the current place. Returns false if it is not there.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  ReadRecord read() {
    Json value;
    if (!read_value(value, 0)) return {{}, at_};
    skip_space();
    if (at_ < text_.size()) return {{}, at_};
    return {std::move(value), at_};
  }

 private:
  char next() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip_space() { at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size()); }
  bool take(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  bool read_value(Json& out, int depth) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    skip_space();
    switch (next()) {
      case '{': return depth < kMaximumDepth && read_object(out, depth + 1);
      case '[': return depth < kMaximumDepth && read_array(out, depth + 1);
      case '"': {
        std::string text;
        if (!read_string(text)) return false;
        out = std::move(text);
        return true;
      }
      case 't': return out = true, take("true");
      case 'f': return out = false, take("false");
      case 'n': return out = nullptr, take("null");
      case 'N': return out = std::numeric_limits<double>::quiet_NaN(), take("NaN");
      case 'I': return out = kInfinity, take("Infinity");
      default: break;
    }
    if (take("-Infinity")) return out = -kInfinity, true;
    return read_number(out);
  }

  bool read_object(Json& out, int depth) {
    Json::Object members;
    std::unordered_map<std::string, size_t> places;
    ++at_;
    for (skip_space(); !take("}"); skip_space()) {
      if (!members.empty() && !take(",")) return false;
      skip_space();
      std::string key;
      Json value;
      if (next() != '"' || !read_string(key)) return false;
      skip_space();
      if (!take(":") || !read_value(value, depth)) return false;
      const auto [place, is_new] = places.emplace(key, members.size());
      if (is_new) {
        members.emplace_back(std::move(key), std::move(value));
      } else {
        members[place->second].second = std::move(value);
      }
    }
    out = std::move(members);
    return true;
  }

  bool read_array(Json& out, int depth) {
    Json::Array items;
    ++at_;
    for (skip_space(); !take("]"); skip_space()) {
      if (!items.empty() && !take(",")) return false;
      if (!read_value(items.emplace_back(), depth)) return false;
    }
    out = std::move(items);
    return true;
  }

  bool read_string(std::string& out) {
    for (++at_; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '"') return ++at_, true;
      if (static_cast<unsigned char>(c) < 0x20) return false;
      if (c != '\\') {
        out += c;
      } else if (++at_; next() == 'u') {
        if (!read_unicode(out)) return false;
      } else {
        constexpr std::string_view kEscapes = "\"\\/bfnrt", kCharacters = "\"\\/\b\f\n\r\t";
        const size_t escape = kEscapes.find(next());
        if (at_ == text_.size() || escape == kEscapes.npos) return false;
        out += kCharacters[escape];
      }
    }
    return false;
  }

  // Reads uXXXX and, for a surrogate, the second half of the pair after it. The position is then
  // that of the last digit.
  bool read_unicode(std::string& out) {
    uint32_t code = 0, low = 0;
    if (!hex_digits(at_ + 1, code)) return false;
    at_ += 4;
    std::optional<char32_t> joined;
    if (text_.substr(at_ + 1, 2) == "\\u" && hex_digits(at_ + 3, low))
      joined = joined_surrogates(code, low);
    if (joined) at_ += 6;
    append_character(joined.value_or(code), out);
    return true;
  }

  bool hex_digits(size_t at, uint32_t& code) const {
    const std::string_view digits = text_.substr(std::min(at, text_.size()), 4);
    const auto [end, error] = std::from_chars(digits.begin(), digits.end(), code, 16);
    return digits.size() == 4 && error == std::errc() && end == digits.end();
  }

  size_t take_digits() {
    const size_t begin = at_;
    at_ = std::min(text_.find_first_not_of("0123456789", at_), text_.size());
    return at_ - begin;
  }

  bool read_number(Json& out) {
    const size_t begin = at_;
    take("-");
    if (!take("0") && take_digits() == 0) return false;
    const size_t integer = at_;
    if (take(".") && take_digits() == 0) return false;
    if (take("e") || take("E")) {
      if (!take("+")) take("-");
      if (take_digits() == 0) return false;
    }
    const std::string number(text_.substr(begin, at_ - begin));
    int64_t value = 0;
    const char* const end = number.data() + number.size();
    if (at_ == integer && std::from_chars(number.data(), end, value).ec == std::errc()) {
      out = value;
    } else {
      out = std::strtod(number.c_str(), nullptr);
    }
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

ReadRecord read_record(std::string_view line) {
  if (const size_t bad = first_invalid_byte(line); bad < line.size()) return {{}, bad};
  return Reader(line).read();
}

Json parse_record(std::string_view line, std::string_view origin) {
  try {
    return Json::parse(line, origin);
  } catch (const Error&) {
    if (ReadRecord record = read_record(line); record.value) return std::move(*record.value);
    throw;
  }
}

void check_text(std::string_view text, std::string_view what) {
  const size_t bad = first_invalid_byte(text);
  if (bad == text.size()) return;
  fail(
      "{} has the escape \\u{:04x} at byte {} of its text: a lone surrogate, one half of a "
      "character "
      "whose other half is missing, which UTF-8 cannot hold; remove it, or put \\ufffd in its "
      "place",
      what, static_cast<uint32_t>(character_at(text, bad)), bad);
}

}  // namespace megatron::data
