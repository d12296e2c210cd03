#include "inference/constraint/schema.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "inference/constraint/formats.h"
#include "inference/constraint/json_text.h"
#include "inference/constraint/number_range.h"
#include "inference/constraint/pattern.h"
#include "inference/constraint/schema_keywords.h"

namespace megatron::inference {
namespace {

constexpr size_t kMaximumProperties = 5000, kMaximumEnumValues = 1000;
constexpr int kMaximumLevels = 10, kMaximumNesting = 50;

bool is_of_type(const Json& value, std::string_view type) {
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_bool();
  if (type == "null") return value.is_null();
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  return value.is_number() && (type == "number" || Decimal(value).places == 0);
}

class SchemaCompiler {
 public:
  SchemaCompiler(Network& network, const Json& root)
      : network_(network), text_(network), root_(root) {}

  void compile() {
    const SchemaPlace root{&root_, "#"};
    const Network::Rule whole = network_.rules()[0];
    add_value(whole.start, whole.final, root, 0);
    for (const char* key : {"$defs", "definitions"}) {
      if (!root_.contains(key)) continue;
      const SchemaPlace definitions = root.child(key);
      if (!definitions.schema->is_object()) definitions.refuse("it is not an object");
      for (const auto& [name, schema] : definitions.schema->as_object()) {
        for (const Leaf& leaf : leaves(definitions.child(name))) rule_of(leaf.place, 0);
      }
    }
    while (!queue_.empty()) {
      const auto [rule, place, level] = std::move(queue_.back());
      queue_.pop_back();
      const Network::Rule ends = network_.rules()[static_cast<size_t>(rule)];
      add_leaf(ends.start, ends.final, place, level);
    }
    check_satisfiable();
  }

 private:
  // A schema without anyOf and $ref; by_reference: a $ref led to it.
  struct Leaf {
    SchemaPlace place;
    bool by_reference;
  };
  struct Queued {
    int32_t rule;
    SchemaPlace place;
    int level;  // of objects and arrays around it
  };
  struct Needed {
    int32_t state;  // some text must lead from it
    SchemaPlace place;
    std::string reason;
  };

  std::vector<Leaf> leaves(const SchemaPlace& place);
  int32_t rule_of(const SchemaPlace& leaf, int level);
  void add_value(int32_t from, int32_t to, const SchemaPlace& place, int level);
  void add_leaf(int32_t from, int32_t to, const SchemaPlace& place, int level);
  void add_type(int32_t from, int32_t to, const SchemaPlace& place, std::string_view type,
                int level);
  void add_enum(int32_t from, int32_t to, const SchemaPlace& place);
  void add_object(int32_t from, int32_t to, const SchemaPlace& place, int level);
  void add_array(int32_t from, int32_t to, const SchemaPlace& place, int level);
  void add_string(int32_t from, int32_t to, const SchemaPlace& place);
  void add_number(int32_t from, int32_t to, const SchemaPlace& place, bool integer);
  const Json::Object& properties_of(const SchemaPlace& place);
  void check_satisfiable() const;

  // A state behind `from` that must be live.
  int32_t needed(int32_t from, const SchemaPlace& place, std::string reason) {
    const int32_t state = network_.add_state();
    network_.add_empty(from, state);
    needed_.push_back({state, place, std::move(reason)});
    return state;
  }

  Network& network_;
  JsonText text_;
  const Json& root_;
  std::map<const Json*, int32_t> rules_;
  std::vector<Queued> queue_;
  std::vector<Needed> needed_;
  std::set<const Json*> counted_;  // objects and enums
  size_t properties_ = 0, enum_values_ = 0;
};

std::vector<SchemaCompiler::Leaf> SchemaCompiler::leaves(const SchemaPlace& place) {
  struct Open {
    SchemaPlace place;
    bool by_reference;
    int nesting;
  };
  std::vector<Leaf> found;
  std::vector<Open> open = {{place, false, 0}};
  std::set<const Json*> seen;
  while (!open.empty()) {
    const Open one = std::move(open.back());
    open.pop_back();
    if (!seen.insert(one.place.schema).second) continue;
    if (one.nesting > kMaximumNesting)
      one.place.refuse(fmt::format("schemas are nested deeper than {}", kMaximumNesting));
    check_keywords(one.place);
    if (const Json* reference = one.place.schema->find("$ref")) {
      if (!reference->is_string()) one.place.refuse("'$ref' is not a string");
      open.push_back({resolve(root_, one.place, reference->as_string()), true, 0});
    } else if (const Json* choices = one.place.schema->find("anyOf")) {
      if (!choices->is_array() || choices->as_array().empty())
        one.place.refuse("'anyOf' is not a list of at least one schema");
      const SchemaPlace list = one.place.child("anyOf");
      for (size_t i = choices->as_array().size(); i-- > 0;)
        open.push_back({list.child(i), one.by_reference, one.nesting + 1});
    } else {
      found.push_back({one.place, one.by_reference});
    }
  }
  return found;
}

int32_t SchemaCompiler::rule_of(const SchemaPlace& leaf, int level) {
  const auto [found, is_new] = rules_.try_emplace(leaf.schema, 0);
  if (is_new) {
    found->second = network_.add_rule();
    queue_.push_back({found->second, leaf, level});
  }
  return found->second;
}

void SchemaCompiler::add_value(int32_t from, int32_t to, const SchemaPlace& place, int level) {
  for (const Leaf& leaf : leaves(place)) {
    if (leaf.by_reference) {
      network_.add_call(from, to, rule_of(leaf.place, 0));
    } else {
      add_leaf(from, to, leaf.place, level);
    }
  }
}

void SchemaCompiler::add_leaf(int32_t from, int32_t to, const SchemaPlace& place, int level) {
  if (place.schema->contains("enum") || place.schema->contains("const"))
    return add_enum(from, to, place);
  for (const std::string& type : types_of(place)) add_type(from, to, place, type, level);
}

void SchemaCompiler::add_type(int32_t from, int32_t to, const SchemaPlace& place,
                              std::string_view type, int level) {
  if (type == "null") return network_.add_text(from, to, "null");
  if (type == "boolean") return text_.add_texts(from, to, {"true", "false"});
  if (type == "string") return add_string(from, to, place);
  if (type == "number" || type == "integer") return add_number(from, to, place, type == "integer");
  if (level == kMaximumLevels)
    place.refuse(
        fmt::format("objects and arrays are nested deeper than {}; move inner ones to "
                    "$defs",
                    kMaximumLevels));
  if (type == "object") return add_object(from, to, place, level + 1);
  add_array(from, to, place, level + 1);
}

void SchemaCompiler::add_enum(int32_t from, int32_t to, const SchemaPlace& place) {
  const Json* list = place.schema->find("enum");
  if (list && (!list->is_array() || list->as_array().empty()))
    place.refuse("'enum' is not a list of at least one value");
  const Json::Array values = list ? list->as_array() : Json::Array{(*place.schema)["const"]};
  if (counted_.insert(place.schema).second) enum_values_ += values.size();
  if (enum_values_ > kMaximumEnumValues)
    place.refuse(fmt::format("all enums together have more than {} values", kMaximumEnumValues));
  std::vector<std::string> texts;
  for (const Json& value : values) {
    texts.push_back(value.dump());
    if (!place.schema->contains("type")) continue;
    const std::vector<std::string> types = types_of(place);
    if (std::ranges::none_of(types, [&](auto& type) { return is_of_type(value, type); }))
      place.refuse(fmt::format("the value {} is not of its type", texts.back()));
  }
  text_.add_texts(from, to, texts);
}

// The properties, all of which are required and no others allowed.
const Json::Object& SchemaCompiler::properties_of(const SchemaPlace& place) {
  const Json* additional = place.schema->find("additionalProperties");
  if (!additional || *additional != Json(false))
    place.refuse("'additionalProperties' must be false: other properties are not supported");
  const Json* properties = place.schema->find("properties");
  if (!properties) place.refuse("'properties' is missing");
  if (!properties->is_object()) place.refuse("'properties' is not an object");
  if (counted_.insert(place.schema).second) properties_ += properties->as_object().size();
  if (properties_ > kMaximumProperties)
    place.refuse(fmt::format("there are more than {} properties", kMaximumProperties));

  std::set<std::string> required;
  if (const Json* names = place.schema->find("required")) {
    if (!names->is_array()) place.refuse("'required' is not a list");
    for (const Json& name : names->as_array()) {
      if (!name.is_string()) place.refuse("'required' is not a list of strings");
      if (!properties->contains(name.as_string()))
        place.refuse(fmt::format("'required' names '{}', which is no property", name.as_string()));
      required.insert(name.as_string());
    }
  }
  for (const auto& [name, schema] : properties->as_object()) {
    if (!required.contains(name))
      place.refuse(fmt::format(
          "the property '{}' is not required; all must be (one that may be left out can be null)",
          name));
  }
  return properties->as_object();
}

void SchemaCompiler::add_object(int32_t from, int32_t to, const SchemaPlace& place, int level) {
  int32_t at = network_.add_state();
  network_.add_bytes(from, at, '{', '{');
  bool first = true;
  for (const auto& [name, schema] : properties_of(place)) {
    if (!first) {
      const int32_t behind = network_.add_state();
      text_.add_separator(at, behind, ',');
      at = behind;
    }
    first = false;
    const int32_t value = network_.add_state(), behind = network_.add_state();
    text_.add_key(at, value, name);
    add_value(value, behind, place.child("properties").child(name), level);
    at = behind;
  }
  network_.add_bytes(at, to, '}', '}');
}

void SchemaCompiler::add_array(int32_t from, int32_t to, const SchemaPlace& place, int level) {
  if (!place.schema->contains("items")) place.refuse("'items' is missing");
  const CountBounds bounds = count_bounds(place, "minItems", "maxItems");
  std::vector<int32_t> rules;
  for (const Leaf& leaf : leaves(place.child("items")))
    rules.push_back(rule_of(leaf.place, leaf.by_reference ? 0 : level));
  text_.add_list(from, to, rules, bounds.minimum, bounds.maximum);
}

void SchemaCompiler::add_string(int32_t from, int32_t to, const SchemaPlace& place) {
  const Json *pattern = place.schema->find("pattern"), *format = place.schema->find("format");
  const CountBounds bounds = count_bounds(place, "minLength", "maxLength");
  if (!pattern && !format) return text_.add_string(from, to, bounds.minimum, bounds.maximum);
  if (pattern && format) place.refuse("'pattern' and 'format' together are not supported");
  for (const char* key : {"minLength", "maxLength"}) {
    if (place.schema->contains(key))
      place.refuse(
          fmt::format("'{}' together with '{}' is not supported; write the length into a "
                      "pattern, as in '^[a-z]{{2,8}}$'",
                      key, pattern ? "pattern" : "format"));
  }
  const Json& value = pattern ? *pattern : *format;
  if (!value.is_string())
    place.refuse(fmt::format("'{}' is not a string", pattern ? "pattern" : "format"));
  const std::string known = pattern ? value.as_string() : format_pattern(value.as_string());
  if (format && known.empty())
    place.refuse(fmt::format("the format '{}' is not supported; supported are {}",
                             value.as_string(), known_formats()));
  const int32_t quote = needed(from, place, fmt::format("no string matches '{}'", known));
  const int32_t start = network_.add_state(), end = network_.add_state();
  network_.add_bytes(quote, start, '"', '"');
  try {
    add_pattern(network_, start, end, known, pattern ? Matching::search : Matching::whole,
                Spelling::json);
  } catch (const Error& error) {
    place.refuse(error.what());
  }
  network_.add_bytes(end, to, '"', '"');
}

void SchemaCompiler::add_number(int32_t from, int32_t to, const SchemaPlace& place, bool integer) {
  if (!integer && !has_number_bounds(place)) return add_any_number(network_, from, to);
  const NumberRange range = number_range(place, integer);
  const char* reason = range.integer ? "no integer of up to 18 digits lies within its bounds"
                                     : "no number of up to 15 digits lies within its bounds";
  inference::add_number(network_, needed(from, place, reason), to, range);
}

void SchemaCompiler::check_satisfiable() const {
  const std::vector<bool> live = network_.live(Network::Bytes().set());
  for (const Needed& one : needed_) {
    if (!live[static_cast<size_t>(one.state)]) one.place.refuse(one.reason);
  }
  if (!live[static_cast<size_t>(network_.rules()[0].start)])
    SchemaPlace{&root_, "#"}.refuse(
        "no value satisfies it: each contains another one, without end");
}

}  // namespace

void add_schema(Network& network, const Json& schema) { SchemaCompiler(network, schema).compile(); }

}  // namespace megatron::inference
