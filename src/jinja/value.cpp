#include "jinja/value.h"

#include <algorithm>

#include "base/error.h"
#include "jinja/unicode.h"

namespace megatron::jinja {
namespace {

constexpr int kMaxNesting = 600;

int one_more(int depth) {
  MG_CHECK(depth < kMaxNesting, "values are nested deeper than {} levels", kMaxNesting);
  return depth + 1;
}

int depth_of(const Values& values) {
  int depth = 0;
  for (const Value& value : values) depth = std::max(depth, value.depth());
  return one_more(depth);
}

}  // namespace

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : members) {
    if (name.is_text() && name.bytes() == key) return &value;
  }
  return nullptr;
}

std::optional<Value> Object::attribute(std::string_view, Budget&) const { return std::nullopt; }

std::string Object::shown(Budget&) const { return "<" + type_name() + ">"; }

Value Object::call(Call&) { fail("'{}' object is not callable", type_name()); }

Value Value::undefined(std::string reason) {
  return Value(Data(std::make_shared<const Missing>(Missing{std::move(reason)})));
}

Value Value::integer(const BigInteger& value) {
  if (const auto small = value.small()) return integer(*small);
  return Value(Data(std::make_shared<const BigInteger>(value)));
}

Value Value::text(std::string bytes, Budget* budget) {
  const int64_t length = count_characters(bytes);
  Budget::Held held(budget, bytes.capacity() + sizeof(Text));
  return Value(Data(std::make_shared<const Text>(Text{std::move(bytes), length, std::move(held)})));
}

Value Value::sequence(Sequence::Form form, Values elements, Budget* budget, std::string type) {
  const int depth = depth_of(elements);
  Budget::Held held(budget, elements.capacity() * sizeof(Value) + sizeof(Sequence));
  return Value(Data(std::make_shared<Sequence>(
      Sequence{form, std::move(elements), std::move(type), depth, 0, std::move(held)})));
}

Value Value::dict(std::vector<std::pair<Value, Value>> members, Budget* budget) {
  int depth = 0;
  for (const auto& [key, value] : members) depth = std::max({depth, key.depth(), value.depth()});
  Budget::Held held(budget, members.capacity() * sizeof(members[0]) + sizeof(Dict));
  return Value(Data(
      std::make_shared<const Dict>(Dict{std::move(members), one_more(depth), std::move(held)})));
}

Value Value::from(const Json& json) {
  if (json.is_null()) return Value();
  if (json.is_bool()) return boolean(json.as_bool());
  if (json.is_integer()) return integer(json.as_integer());
  if (json.is_wide_integer()) {
    const std::string_view digits = json.wide_digits();
    if (digits[0] != '-') return integer(BigInteger::parse(digits));
    return integer(-BigInteger::parse(digits.substr(1)));
  }
  if (json.is_number()) return real(json.as_number());
  if (json.is_string()) return text(json.as_string());
  if (json.is_array()) {
    Values elements;
    for (const Json& element : json.as_array()) elements.push_back(from(element));
    return list(std::move(elements), nullptr);
  }
  std::vector<std::pair<Value, Value>> members;
  for (const auto& [key, value] : json.as_object()) members.emplace_back(text(key), from(value));
  return dict(std::move(members), nullptr);
}

int64_t Value::as_whole() const {
  MG_CHECK(!is_big(), "cannot fit 'int' into an index-sized integer");
  return is_boolean() ? as_boolean() : std::get<int64_t>(data_);
}

BigInteger Value::as_big() const {
  return is_big() ? *std::get<std::shared_ptr<const BigInteger>>(data_) : BigInteger(as_whole());
}

double Value::as_number() const {
  if (is_real()) return std::get<double>(data_);
  return is_big() ? as_big().nearest() : static_cast<double>(as_whole());
}

std::string Value::type_name() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "NoneType";
  if (is_boolean()) return "bool";
  if (is_integer()) return "int";
  if (is_real()) return "float";
  if (is_text()) return "str";
  if (is_dict()) return "dict";
  if (is_object()) return as_object()->type_name();
  switch (as_sequence().form) {
    case Sequence::Form::list: return "list";
    case Sequence::Form::tuple: return "tuple";
    case Sequence::Form::group: return "_GroupTuple";
    case Sequence::Form::range: return "range";
    case Sequence::Form::view: return as_sequence().type;
    case Sequence::Form::iterator: return "generator";
  }
  return "";
}

bool Value::truth() const {
  if (is_undefined() || is_none()) return false;
  if (is_number()) return is_big() || as_number() != 0;
  if (is_text()) return !bytes().empty();
  if (is_dict()) return !as_dict().members.empty();
  if (is_sequence())
    return as_sequence().form == Sequence::Form::iterator || !as_sequence().elements.empty();
  return true;
}

int Value::depth() const {
  if (is_sequence()) return as_sequence().depth;
  if (is_dict()) return as_dict().depth;
  return is_object() ? as_object()->depth : 0;
}

bool Value::same(const Value& other) const {
  if (is_text() && other.is_text()) return bytes() == other.bytes();
  if (is_undefined() && other.is_undefined()) return true;
  return data_ == other.data_;
}

}  // namespace megatron::jinja
