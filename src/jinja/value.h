// Values of a template: Python's values, as far as Jinja exposes them. Values are immutable and
// shared; only objects (namespaces, iterators) change.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/json.h"
#include "jinja/big_integer.h"
#include "jinja/budget.h"

namespace megatron::jinja {

class Value;
class Interpreter;
struct Call;
using Values = std::vector<Value>;

struct Missing {       // jinja2.Undefined
  std::string reason;  // "'x' is undefined"
};

// Each kind of value below counts its memory in the budget of its render (`held`).
struct Text {
  std::string bytes;   // UTF-8
  int64_t length = 0;  // code points
  Budget::Held held;
  bool ascii() const { return length == static_cast<int64_t>(bytes.size()); }
};

struct Sequence {
  enum class Form { list, tuple, group, range, view, iterator };  // group: a tuple from groupby
  Form form = Form::list;
  std::vector<Value> elements;
  std::string type;  // for a view of a dict: "dict_items"
  int depth = 1;     // nesting
  size_t taken = 0;  // for an iterator: number of elements already consumed
  Budget::Held held;
  std::array<int64_t, 3> range{};  // for a range: start, stop and step
};

struct Dict {
  std::vector<std::pair<Value, Value>> members;  // in insertion order, with distinct keys
  int depth = 1;
  Budget::Held held;
  const Value* find(std::string_view key) const;
};

// Values with behaviour: functions, macros, namespaces, loop.
struct Object {
  virtual ~Object() = default;
  virtual std::string type_name() const = 0;        // the name in Python's error messages
  virtual std::string shown(Budget& budget) const;  // repr()
  virtual std::optional<Value> attribute(std::string_view name, Budget& budget) const;
  virtual bool callable() const { return false; }
  virtual Value call(Call& call);
  int depth = 0;  // nesting of its values; 0 if the interpreter breaks cycles
};

class Value {
 public:
  Value() = default;  // None
  static Value undefined(std::string reason);
  static Value boolean(bool value) { return Value(Data(value)); }
  static Value integer(int64_t value) { return Value(Data(value)); }
  static Value integer(const BigInteger& value);
  static Value real(double value) { return Value(Data(value)); }
  // budget: counts values that a template makes; null for constants and inputs.
  static Value text(std::string bytes, Budget* budget = nullptr);
  static Value list(Values elements, Budget* budget) {
    return sequence(Sequence::Form::list, std::move(elements), budget);
  }
  static Value tuple(Values elements, Budget* budget) {
    return sequence(Sequence::Form::tuple, std::move(elements), budget);
  }
  // A Python generator: always true, has no length, and is consumed by reading.
  static Value iterator(Values elements, Budget* budget) {
    return sequence(Sequence::Form::iterator, std::move(elements), budget);
  }
  static Value sequence(Sequence::Form form, Values elements, Budget* budget,
                        std::string type = "");
  // The keys must differ.
  static Value dict(std::vector<std::pair<Value, Value>> members, Budget* budget);
  static Value object(std::shared_ptr<Object> object) { return Value(Data(std::move(object))); }
  static Value from(const Json& json);

  bool is_undefined() const { return holds<std::shared_ptr<const Missing>>(); }
  bool is_none() const { return holds<std::monostate>(); }
  bool is_boolean() const { return holds<bool>(); }
  bool is_integer() const { return holds<int64_t>() || is_big(); }
  bool is_big() const { return holds<std::shared_ptr<const BigInteger>>(); }  // beyond 64 bits
  bool is_real() const { return holds<double>(); }
  bool is_number() const { return is_integer() || is_real() || is_boolean(); }
  bool is_whole() const { return is_integer() || is_boolean(); }  // Python's bool is an int
  bool is_text() const { return holds<std::shared_ptr<const Text>>(); }
  bool is_sequence() const { return holds<std::shared_ptr<Sequence>>(); }
  bool is_tuple() const { return is_form(Sequence::Form::tuple) || is_form(Sequence::Form::group); }
  bool is_list_or_tuple() const { return is_form(Sequence::Form::list) || is_tuple(); }
  bool is_form(Sequence::Form form) const { return is_sequence() && as_sequence().form == form; }
  bool is_dict() const { return holds<std::shared_ptr<const Dict>>(); }
  bool is_object() const { return holds<std::shared_ptr<Object>>(); }

  // The value must be of the kind asked for (as_whole and as_big also take a boolean, as_number any
  // number).
  bool as_boolean() const { return std::get<bool>(data_); }
  int64_t as_whole() const;   // throws Error above 64 bits
  BigInteger as_big() const;  // an integer of any size
  double as_number() const;   // throws Error for an integer above the range of double
  const Missing& as_missing() const { return *std::get<std::shared_ptr<const Missing>>(data_); }
  const Text& as_text() const { return *std::get<std::shared_ptr<const Text>>(data_); }
  const std::string& bytes() const { return as_text().bytes; }
  Sequence& as_sequence() const { return *std::get<std::shared_ptr<Sequence>>(data_); }
  const Dict& as_dict() const { return *std::get<std::shared_ptr<const Dict>>(data_); }
  const std::shared_ptr<Object>& as_object() const {
    return std::get<std::shared_ptr<Object>>(data_);
  }

  std::string type_name() const;  // Python's: "str", "NoneType", "dict", ...
  bool truth() const;
  int depth() const;
  bool same(const Value& other) const;  // Python's `is`

 private:
  using Data =
      std::variant<std::monostate, std::shared_ptr<const Missing>, bool, int64_t,
                   std::shared_ptr<const BigInteger>, double, std::shared_ptr<const Text>,
                   std::shared_ptr<Sequence>, std::shared_ptr<const Dict>, std::shared_ptr<Object>>;
  explicit Value(Data data) : data_(std::move(data)) {}
  template <class T>
  bool holds() const {
    return std::holds_alternative<T>(data_);
  }

  Data data_;
};

}  // namespace megatron::jinja
