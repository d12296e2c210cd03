// JSON values. Objects keep the order of their keys; integers and floating-point numbers are
// distinct. An integer beyond 64 bits keeps its decimal digits: it is a number, but not
// is_integer(). The parser is nlohmann-json, which only json.cpp includes. For JSON lines and large
// files use simdjson where they are read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace megatron {

class Json {
 public:
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;

  Json();  // null
  Json(const Json&);
  Json(Json&&) noexcept;
  Json& operator=(const Json&);
  Json& operator=(Json&&) noexcept;
  ~Json();
  Json(std::nullptr_t) : Json() {}
  Json(bool value) : value_(value) {}
  Json(int value) : value_(static_cast<int64_t>(value)) {}
  Json(int64_t value) : value_(value) {}
  Json(uint64_t value);
  Json(double value) : value_(value) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(std::string_view value) : value_(std::string(value)) {}
  Json(const char* value) : value_(std::string(value)) {}
  Json(Array value) : value_(std::move(value)) {}
  Json(Object value) : value_(std::move(value)) {}
  static Json wide_integer(std::string digits);  // as wide_digits() returns them

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_integer() const { return std::holds_alternative<int64_t>(value_); }
  bool is_wide_integer() const { return std::holds_alternative<WideInteger>(value_); }
  bool is_number() const {
    return is_integer() || is_wide_integer() || std::holds_alternative<double>(value_);
  }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }

  // Typed access; throws Error naming the actual and the expected type.
  bool as_bool() const;
  int64_t as_integer() const;  // also accepts a float with an integral value
  double as_number() const;
  // Digits of an integer beyond 64 bits: "-9223372036854775809".
  const std::string& wide_digits() const;
  const std::string& as_string() const;
  const Array& as_array() const;
  Array& as_array();
  const Object& as_object() const;
  Object& as_object();

  // Object access. find: null if absent. operator[]: throws Error naming a missing key.
  const Json* find(std::string_view key) const;
  const Json& operator[](std::string_view key) const;
  bool contains(std::string_view key) const { return find(key) != nullptr; }
  void set(std::string_view key, Json value);  // replaces in place, or appends

  bool operator==(const Json&) const;

  // Throws Error with `origin`, line and column on bad JSON, on a repeated key, on nesting deeper
  // than 512, on integers of more than 4300 digits and on other numbers beyond the range of double.
  static Json parse(std::string_view text, std::string_view origin = "JSON");
  static Json read(const std::string& path);
  // The same for a file of Python's json module, in which a bare Infinity may stand in place of a
  // number: {"__float__": "Infinity"}, as transformers 5 writes it.
  static Json read_python(const std::string& path);
  // indent < 0: one line. Non-ASCII text is written unchanged (ensure_ascii: as \u escapes).
  // Floating-point numbers read back to the same value, and always have a point or an exponent.
  std::string dump(int indent = -1, bool ensure_ascii = false) const;

 private:
  struct WideInteger {
    std::string digits;
    bool operator==(const WideInteger&) const = default;
  };
  std::variant<std::monostate, bool, int64_t, double, WideInteger, std::string, Array, Object>
      value_;
};

}  // namespace megatron
