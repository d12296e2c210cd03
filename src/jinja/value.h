// What a template computes with: the values of Python as far as Jinja shows them. Values are
// immutable and shared; only objects (namespaces, iterators) change.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/json.h"

namespace megatron::jinja {

class Value;
class Interpreter;
struct Call;
using Values = std::vector<Value>;

struct Missing {       // jinja2.Undefined
  std::string reason;  // "'x' is undefined"
};

struct Text {
  std::string bytes;   // UTF-8
  int64_t length = 0;  // code points
  bool ascii() const { return length == static_cast<int64_t>(bytes.size()); }
};

struct Sequence {
  enum class Form { list, tuple, range, view, iterator };
  Form form = Form::list;
  std::vector<Value> elements;
  std::string shown;  // a range: repr(); a view of a dict: its type, "dict_items"
  int depth = 1;      // nesting
  size_t taken = 0;   // of an iterator: elements that were given out; they come once only
};

struct Dict {
  std::vector<std::pair<Value, Value>> members;  // in order of insertion, keys differ
  int depth = 1;
  const Value* find(std::string_view key) const;
};

// Values with behaviour: functions, macros, namespaces, loop.
struct Object {
  virtual ~Object() = default;
  virtual std::string type_name() const = 0;  // as Python's error messages name it
  virtual std::optional<Value> attribute(std::string_view name) const;
  virtual bool callable() const { return false; }
  virtual Value call(Call& call);
  int depth = 0;  // nesting of the values within; 0 where the interpreter ends cycles
};

class Value {
 public:
  Value() = default;  // None
  static Value undefined(std::string reason);
  static Value boolean(bool value) { return Value(Data(value)); }
  static Value integer(int64_t value) { return Value(Data(value)); }
  static Value real(double value) { return Value(Data(value)); }
  static Value text(std::string bytes);
  static Value list(Values elements) { return sequence(Sequence::Form::list, std::move(elements)); }
  static Value tuple(Values elements) {
    return sequence(Sequence::Form::tuple, std::move(elements));
  }
  // A Python generator: true however many elements it has, without length, used up by reading.
  static Value iterator(Values elements);
  static Value sequence(Sequence::Form form, Values elements, std::string shown = "");
  static Value dict(std::vector<std::pair<Value, Value>> members);  // keys must differ
  static Value object(std::shared_ptr<Object> object) { return Value(Data(std::move(object))); }
  static Value from(const Json& json);

  bool is_undefined() const { return holds<std::shared_ptr<const Missing>>(); }
  bool is_none() const { return holds<std::monostate>(); }
  bool is_boolean() const { return holds<bool>(); }
  bool is_integer() const { return holds<int64_t>(); }
  bool is_real() const { return holds<double>(); }
  bool is_number() const { return is_integer() || is_real() || is_boolean(); }
  bool is_whole() const { return is_integer() || is_boolean(); }  // Python's bool is an int
  bool is_text() const { return holds<std::shared_ptr<const Text>>(); }
  bool is_sequence() const { return holds<std::shared_ptr<Sequence>>(); }
  bool is_form(Sequence::Form form) const { return is_sequence() && as_sequence().form == form; }
  bool is_dict() const { return holds<std::shared_ptr<const Dict>>(); }
  bool is_object() const { return holds<std::shared_ptr<Object>>(); }

  // Each must be of that kind (as_whole also boolean; as_number any number).
  bool as_boolean() const { return std::get<bool>(data_); }
  int64_t as_whole() const { return is_boolean() ? as_boolean() : std::get<int64_t>(data_); }
  double as_number() const;
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
  using Data = std::variant<std::monostate, std::shared_ptr<const Missing>, bool, int64_t, double,
                            std::shared_ptr<const Text>, std::shared_ptr<Sequence>,
                            std::shared_ptr<const Dict>, std::shared_ptr<Object>>;
  explicit Value(Data data) : data_(std::move(data)) {}
  template <class T>
  bool holds() const {
    return std::holds_alternative<T>(data_);
  }

  Data data_;
};

}  // namespace megatron::jinja
