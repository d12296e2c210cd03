#include "jinja/conversions.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "jinja/numbers.h"
#include "jinja/operators.h"
#include "jinja/unicode.h"

namespace megatron::jinja {
namespace {

std::string escape_of(char32_t c) {
  const auto code = static_cast<uint32_t>(c);
  if (c < 0x100) return fmt::format("\\x{:02x}", code);
  return c < 0x10000 ? fmt::format("\\u{:04x}", code) : fmt::format("\\U{:08x}", code);
}

class Writer {
 public:
  explicit Writer(Budget& budget) : budget_(budget) {}

  void write(const Value& value) {
    const Budget::Level level(budget_);
    budget_.spend(1);
    if (value.is_undefined()) {
      out_ += "Undefined";
    } else if (value.is_text()) {
      put(repr_of_text(value.bytes()));
    } else if (value.is_sequence()) {
      write_sequence(value.as_sequence());
    } else if (value.is_dict()) {
      write_dict(value.as_dict());
    } else if (value.is_object()) {
      put(value.as_object()->shown(budget_));
    } else {
      out_ += to_text(value, budget_);
    }
  }

  std::string take() { return std::move(out_); }

 private:
  void put(std::string_view text) {
    out_ += text;
    budget_.spend_bytes(text.size());
    budget_.check_length(out_.size());
  }

  void write_elements(const Values& elements) {
    for (size_t i = 0; i < elements.size(); ++i) {
      if (i > 0) out_ += ", ";
      write(elements[i]);
    }
  }

  void write_sequence(const Sequence& sequence) {
    using Form = Sequence::Form;
    if (sequence.form == Form::iterator) return put("<generator>");
    if (sequence.form == Form::range) {
      const auto& [begin, end, step] = sequence.range;
      return put(
          fmt::format("range({}, {}{})", begin, end, step == 1 ? "" : fmt::format(", {}", step)));
    }
    const bool tuple = sequence.form == Form::tuple || sequence.form == Form::group;
    const bool view = sequence.form == Form::view;
    if (view) out_ += sequence.type + "(";
    out_ += tuple ? "(" : "[";
    write_elements(sequence.elements);
    if (tuple && sequence.elements.size() == 1) out_ += ",";
    out_ += tuple ? ")" : "]";
    if (view) out_ += ")";
  }

  void write_dict(const Dict& dict) {
    out_ += "{";
    for (size_t i = 0; i < dict.members.size(); ++i) {
      if (i > 0) out_ += ", ";
      write(dict.members[i].first);
      out_ += ": ";
      write(dict.members[i].second);
    }
    out_ += "}";
  }

  Budget& budget_;
  std::string out_;
};

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Budget& budget) : style_(style), budget_(budget) {}

  void write(const Value& value, int depth) {
    budget_.spend(1);
    if (value.is_text()) {
      write_text(value.bytes());
    } else if (value.is_list_or_tuple()) {
      write_list(value.as_sequence().elements, depth);
    } else if (value.is_dict()) {
      write_dict(value.as_dict(), depth);
    } else {
      const std::string scalar = scalar_text(value);
      MG_CHECK(!scalar.empty(), "Object of type {} is not JSON serializable", value.type_name());
      out_ += scalar;
    }
    budget_.check_length(out_.size());
  }

  std::string take() { return std::move(out_); }

 private:
  std::string scalar_text(const Value& value) {
    if (value.is_none()) return "null";
    if (value.is_boolean()) return value.as_boolean() ? "true" : "false";
    if (value.is_integer()) return text_of_integer(value, budget_);
    if (!value.is_real()) return "";
    const double number = value.as_number();
    if (std::isnan(number)) return "NaN";
    if (std::isinf(number)) return number < 0 ? "-Infinity" : "Infinity";
    return repr_of_real(number);
  }

  std::string key_text(const Value& key) {
    if (key.is_text()) return key.bytes();
    const std::string scalar = scalar_text(key);
    MG_CHECK(!scalar.empty(), "keys must be str, int, float, bool or None, not {}",
             key.type_name());
    return scalar;
  }

  void break_line(int depth) {
    if (!style_.indent) return;
    budget_.spend_bytes(style_.indent->size() * static_cast<size_t>(depth));
    out_ += '\n';
    for (int i = 0; i < depth; ++i) out_ += *style_.indent;
  }

  void write_list(const Values& elements, int depth) {
    out_ += '[';
    for (size_t i = 0; i < elements.size(); ++i) {
      if (i > 0) out_ += style_.between_items;
      break_line(depth + 1);
      write(elements[i], depth + 1);
    }
    if (!elements.empty()) break_line(depth);
    out_ += ']';
  }

  void write_dict(const Dict& dict, int depth) {
    std::vector<const std::pair<Value, Value>*> members;
    for (const auto& member : dict.members) members.push_back(&member);
    if (style_.sort_keys) {
      std::stable_sort(members.begin(), members.end(), [&](const auto* a, const auto* b) {
        return compared(Order::less, a->first, b->first, budget_);
      });
    }
    out_ += '{';
    bool first = true;
    for (const auto* member : members) {
      if (!first) out_ += style_.between_items;
      first = false;
      break_line(depth + 1);
      write_text(key_text(member->first));
      out_ += style_.behind_key;
      write(member->second, depth + 1);
    }
    if (!members.empty()) break_line(depth);
    out_ += '}';
  }

  void write_text(std::string_view text) {
    budget_.spend_bytes(text.size());
    out_ += '"';
    for (size_t at = 0; at < text.size();) write_letter(next_character(text, at));
    out_ += '"';
  }

  void write_letter(char32_t c) {
    static constexpr std::string_view kShort = "\"\\\b\f\n\r\t", kNames = "\"\\bfnrt";
    const size_t known = c < 0x80 ? kShort.find(static_cast<char>(c)) : std::string_view::npos;
    if (known != std::string_view::npos) {
      out_ += '\\';
      out_ += kNames[known];
    } else if (c < 0x20 || (style_.ensure_ascii && c > 0x7F)) {
      out_ += json_escape(c);
    } else {
      append_character(c, out_);
    }
  }

  const JsonStyle& style_;
  Budget& budget_;
  std::string out_;
};

}  // namespace

std::string to_text(const Value& value, Budget& budget) {
  if (value.is_text()) return value.bytes();
  if (value.is_undefined()) return "";
  if (value.is_none()) return "None";
  if (value.is_boolean()) return value.as_boolean() ? "True" : "False";
  if (value.is_integer()) return text_of_integer(value, budget);
  if (value.is_real()) return repr_of_real(value.as_number());
  return repr(value, budget);
}

std::string repr(const Value& value, Budget& budget) {
  Writer writer(budget);
  writer.write(value);
  return writer.take();
}

std::string ascii(const std::string& shown) {
  std::string out;
  for (size_t at = 0; at < shown.size();) {
    const char32_t c = next_character(shown, at);
    if (c < 0x80) out += static_cast<char>(c);
    else out += escape_of(c);
  }
  return out;
}

std::string repr_of_text(std::string_view text) {
  const bool single = text.find('\'') == std::string_view::npos;
  const char quote = single || text.find('"') != std::string_view::npos ? '\'' : '"';
  std::string out(1, quote);
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_character(text, at);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (is_printable(c)) {
      append_character(c, out);
    } else {
      out += escape_of(c);
    }
  }
  return out + quote;
}

std::string to_json(const Value& value, const JsonStyle& style, Budget& budget) {
  JsonWriter writer(style, budget);
  writer.write(value, 0);
  return writer.take();
}

}  // namespace megatron::jinja
