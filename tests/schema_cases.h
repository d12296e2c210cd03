// Random JSON schemas, a validator for them, and random texts generated under a schema.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "constraint_cases.h"
#include "inference/constraint/grammar.h"
#include "tokenizers/tokenizer.h"

namespace megatron::inference {

class RandomSchema {
 public:
  explicit RandomSchema(std::mt19937_64& random) : random_(random) {}

  // An object schema. Half of them have definitions, which may refer to themselves and to the root.
  Json draw() {
    has_definitions_ = below(2) == 0;
    Json schema = object(3);
    if (has_definitions_) {
      // Every definition allows a finite value: a list may be empty, and a union includes null.
      schema.set("$defs",
                 Json::Object{{"list", Json::Object{{"type", "array"}, {"items", value(1)}}},
                              {"tree", nullable(object(1))}});
    }
    return schema;
  }

 private:
  uint64_t below(uint64_t count) { return random_() % count; }
  bool one_in(uint64_t count) { return below(count) == 0; }

  Json value(int depth) {
    if (has_definitions_ && one_in(6)) {
      static constexpr const char* kTargets[] = {"#/$defs/list", "#/$defs/tree", "#"};
      Json reference = Json::Object{{"$ref", kTargets[below(3)]}};
      return nullable(std::move(reference));
    }
    switch (below(depth > 0 ? 11 : 8)) {
      case 0: return string();
      case 1: return string();
      case 2: return number();
      case 3: return Json::Object{{"type", "boolean"}};
      case 4: return constants();
      case 5: return Json::Object{{"type", Json::Array{"null", "integer"}}, {"minimum", 7}};
      case 6: return together();
      case 7: return Json::Object{{"oneOf", Json::Array{string(), number()}}};
      case 8: return object(depth - 1);
      case 9: return array(depth - 1);
      default:
        return Json::Object{
            {"anyOf", Json::Array{value(depth - 1), value(depth - 1), value(depth - 1)}}};
    }
  }

  static Json nullable(Json schema) {
    return Json::Object{{"anyOf", Json::Array{std::move(schema), Json::Object{{"type", "null"}}}}};
  }

  Json object(int depth) {
    Json properties = Json::Object{};
    Json::Array required;
    for (uint64_t count = below(5); count > 0; --count) {
      static constexpr const char* kNames[] = {"a",         "b",     "ab", "name",
                                               "the \"x\"", "größe", "\n", ""};
      const char* name = kNames[below(8)];
      if (properties.contains(name)) continue;
      properties.set(name, value(depth));
      if (!one_in(3)) required.emplace_back(name);
    }
    Json schema = Json::Object{{"type", "object"},
                               {"properties", std::move(properties)},
                               {"required", std::move(required)}};
    if (one_in(2)) schema.set("additionalProperties", false);
    return schema;
  }

  // Schemas that some value satisfies together.
  Json together() {
    const auto low = static_cast<int64_t>(below(200)) - 100;
    return Json::Object{
        {"type", Json::Array{"integer", "string"}},
        {"maxLength", static_cast<int64_t>(1 + below(5))},
        {"allOf", Json::Array{Json::Object{{"minimum", low}, {"pattern", "^[a-z]"}},
                              Json::Object{{"maximum", low + 60}, {"pattern", "[a-z]$"}}}}};
  }

  Json array(int depth) {
    Json schema = Json::Object{{"type", "array"}, {"items", value(depth)}};
    const auto least = static_cast<int64_t>(below(3));
    if (one_in(2)) schema.set("minItems", least);
    if (one_in(2)) schema.set("maxItems", least + static_cast<int64_t>(below(4)));
    return schema;
  }

  Json string() {
    static constexpr const char* kPatterns[] = {
        "^[a-z]{2,5}$", "^\\d{3}-\\d{4}$", "^(foo|bar)+$", "x", "^a", "[0-9]$", "^[^\"]{0,3}$|y"};
    static constexpr const char* kFormats[] = {"date-time", "time",     "date", "duration", "email",
                                               "ipv4",      "hostname", "ipv6", "uuid"};
    Json schema = Json::Object{{"type", "string"}};
    const uint64_t kind = below(5);
    if (kind == 0) schema.set("pattern", kPatterns[below(7)]);
    if (kind == 1) schema.set("format", kFormats[below(9)]);
    if (kind == 2) {
      const auto least = static_cast<int64_t>(below(4));
      schema.set("minLength", least);
      if (one_in(2)) schema.set("maxLength", least + static_cast<int64_t>(below(6)));
      if (one_in(3)) schema.set("pattern", "^[a-z0-9]*$");
    }
    return schema;
  }

  Json number() {
    Json schema = Json::Object{{"type", one_in(2) ? "integer" : "number"}};
    const auto low = static_cast<int64_t>(below(200)) - 100;
    if (one_in(2)) schema.set(one_in(2) ? "minimum" : "exclusiveMinimum", low);
    if (one_in(2))
      schema.set(one_in(2) ? "maximum" : "exclusiveMaximum",
                 low + 40 + static_cast<int64_t>(below(100)));
    if (one_in(3)) schema.set("multipleOf", static_cast<int64_t>(1 + below(20)));
    return schema;
  }

  Json constants() {
    if (one_in(4)) return Json::Object{{"const", "only"}};
    return Json::Object{
        {"enum", Json::Array{"red", "redder", "\"", 1, -2.5, true, nullptr, Json::Array{1, "x"}}}};
  }

  std::mt19937_64& random_;
  bool has_definitions_ = false;
};

// Validates by JSON Schema 2020-12 the keywords that RandomSchema uses (formats are tested
// elsewhere). Objects have no properties except those listed.
class SchemaValidator {
 public:
  explicit SchemaValidator(const Json& root) : root_(root) {}

  bool satisfies(const Json& value) const { return satisfies(value, root_); }

 private:
  bool satisfies(const Json& value, const Json& schema) const {
    const auto satisfied = [&](const Json::Array& schemas) {
      return std::ranges::count_if(schemas, [&](auto& one) { return satisfies(value, one); });
    };
    if (const Json* reference = schema.find("$ref"))
      return satisfies(value, target(reference->as_string()));
    if (const Json* choices = schema.find("anyOf")) return satisfied(choices->as_array()) > 0;
    if (const Json* choices = schema.find("oneOf")) return satisfied(choices->as_array()) == 1;
    if (const Json* all = schema.find("allOf");
        all && satisfied(all->as_array()) != std::ssize(all->as_array()))
      return false;
    if (const Json* only = schema.find("const")) return value == *only;
    if (const Json* list = schema.find("enum"))
      return std::ranges::find(list->as_array(), value) != list->as_array().end();
    static const Json kAny =
        Json::Array{"string", "number", "integer", "boolean", "null", "object", "array"};
    const Json& type = schema.contains("type") ? schema["type"] : kAny;
    const Json::Array types = type.is_array() ? type.as_array() : Json::Array{type};
    return std::ranges::any_of(
        types, [&](const Json& one) { return is_of_type(value, one.as_string(), schema); });
  }

  const Json& target(std::string_view pointer) const {
    if (pointer == "#") return root_;
    return root_["$defs"][pointer.substr(pointer.rfind('/') + 1)];
  }

  bool is_of_type(const Json& value, std::string_view type, const Json& schema) const {
    if (type == "null") return value.is_null();
    if (type == "boolean") return value.is_bool();
    if (type == "string") return value.is_string() && string_fits(value.as_string(), schema);
    if (type == "integer") return value.is_integer() && number_fits(value, schema);
    if (type == "number") return value.is_number() && number_fits(value, schema);
    if (type == "array")
      return value.is_array() &&
             (!schema.contains("items") || array_fits(value.as_array(), schema));
    return value.is_object() &&
           (!schema.contains("properties") || object_fits(value.as_object(), schema));
  }

  static bool string_fits(const std::string& text, const Json& schema) {
    const auto length = std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; });
    if (const Json* least = schema.find("minLength"); least && length < least->as_integer())
      return false;
    if (const Json* most = schema.find("maxLength"); most && length > most->as_integer())
      return false;
    const Json* pattern = schema.find("pattern");
    if (!pattern) return true;
    std::string characters = text;  // one byte each: bytes inside a character are left out
    std::erase_if(characters, [](char c) { return (c & 0xc0) == 0x80; });
    return std::regex_search(characters, std::regex(pattern->as_string()));
  }

  static bool number_fits(const Json& number, const Json& schema) {
    const double value = number.as_number();
    const auto bound = [&](const char* key, auto&& fits) {
      const Json* limit = schema.find(key);
      return !limit || fits(limit->as_number());
    };
    if (const Json* divisor = schema.find("multipleOf")) {
      if (!number.is_integer() || number.as_integer() % divisor->as_integer() != 0) return false;
    }
    return bound("minimum", [&](double x) { return value >= x; }) &&
           bound("maximum", [&](double x) { return value <= x; }) &&
           bound("exclusiveMinimum", [&](double x) { return value > x; }) &&
           bound("exclusiveMaximum", [&](double x) { return value < x; });
  }

  bool array_fits(const Json::Array& items, const Json& schema) const {
    const auto count = static_cast<int64_t>(items.size());
    if (const Json* least = schema.find("minItems"); least && count < least->as_integer())
      return false;
    if (const Json* most = schema.find("maxItems"); most && count > most->as_integer())
      return false;
    return std::ranges::all_of(items,
                               [&](const Json& item) { return satisfies(item, schema["items"]); });
  }

  bool object_fits(const Json::Object& object, const Json& schema) const {
    const Json::Object& properties = schema["properties"].as_object();
    auto next = properties.begin();  // in the schema's order, which is stricter
    for (const auto& [name, value] : object) {
      next = std::find_if(next, properties.end(), [&](auto& one) { return one.first == name; });
      if (next == properties.end() || !satisfies(value, next->second)) return false;
    }
    return std::ranges::all_of(schema["required"].as_array(), [&](const Json& name) {
      return std::ranges::find(object, name.as_string(), &Json::Member::first) != object.end();
    });
  }

  const Json& root_;
};

// Compares a mask with the effect of each token taken alone.
inline void check_mask(const Matcher& matcher, const std::shared_ptr<const TokenBytes>& tokens,
                       int32_t every) {
  Matcher here = matcher;
  std::vector<uint64_t> mask(tokens->words());
  bool complete = false;
  here.allowed(mask, complete);
  for (int32_t id = 0; id < tokens->size(); id += every) {
    Matcher next = matcher;
    bool accepted = true;
    try {
      next.accept(id);
    } catch (const Error&) {
      accepted = false;
    }
    ASSERT_EQ(is_set(mask, id), accepted) << "token " << id << " '" << tokens->bytes(id) << "'";
  }
}

// Generates texts under one random schema. Each finished text parses, satisfies the schema, and
// matches the grammar byte by byte. After any sequence of tokens the text can still be finished.
// Returns the number of texts, or -1 if the tokenizer cannot spell the schema.
inline int check_random_schema(const tokenizers::Tokenizer& tokenizer,
                               const std::shared_ptr<const TokenBytes>& tokens, uint64_t seed) {
  std::mt19937_64 random(seed);
  const Json schema = RandomSchema(random).draw();
  const SchemaValidator validator(schema);
  const auto grammar = Grammar::from_json_schema(schema);
  EXPECT_EQ(grammar->unenforced(), std::vector<std::string>{}) << schema.dump();
  int texts = 0;
  const auto check = [&](const Matcher& start, std::vector<int32_t> ids, int patience) {
    const auto more = RandomText(tokens, random).draw(start, patience);
    ASSERT_TRUE(more) << "does not end behind " << tokenizer.decode(ids) << " of " << schema.dump();
    ids.insert(ids.end(), more->begin(), more->end());
    const std::string text = tokenizer.decode(ids);
    EXPECT_TRUE(validator.satisfies(Json::parse(text))) << text << " of " << schema.dump();
    EXPECT_EQ(reads(grammar, text), 1) << text << " of " << schema.dump();
    ++texts;
  };
  std::unique_ptr<Matcher> start;
  try {
    start = std::make_unique<Matcher>(grammar, tokens);
  } catch (const Error&) {
    return -1;
  }
  for (const int patience : {0, 5, 30}) check(*start, {}, patience);

  // Follows one path, and branches off at each position.
  Matcher matcher = *start;
  std::vector<int32_t> ids;
  std::vector<uint64_t> mask(tokens->words());
  for (int i = 0; i < 12 && !matcher.must_end(); ++i) {
    bool complete = false;
    matcher.allowed(mask, complete);
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < tokens->size(); ++id) {
      if (is_set(mask, id)) allowed.push_back(id);
    }
    if (allowed.empty()) break;
    if (i % 4 == 1) check_mask(matcher, tokens, 1 + tokens->size() / 1000);
    ids.push_back(allowed[random() % allowed.size()]);
    matcher.accept(ids.back());
    check(matcher, ids, 0);
  }
  return texts;
}

}  // namespace megatron::inference
