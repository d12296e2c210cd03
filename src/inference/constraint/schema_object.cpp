// Objects of JSON schemas.
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "inference/constraint/pattern.h"
#include "inference/constraint/schema_compiler.h"

namespace megatron::inference {
namespace {

// The keywords of one schema for the properties of an object.
struct ObjectKeywords {
  struct Pattern {
    std::string_view text;
    CharacterGraph graph;
    const SchemaPlace* schema;
  };
  const SchemaPlace* place;
  const Json* additional;  // null if absent
  std::unordered_map<std::string_view, const Json*> properties;
  std::vector<Pattern> patterns;
};

ObjectKeywords keywords_of(const SchemaPlace& place, SchemaReader& reader) {
  ObjectKeywords found{&place, place.find("additionalProperties"), {}, {}};
  if (const Json* properties = place.find("properties")) {
    if (!properties->is_object()) place.refuse("'properties' is not an object");
    for (const auto& [name, schema] : properties->as_object())
      found.properties.emplace(name, &schema);
    reader.spend(place, found.properties.size());
  }
  for (const char* keyword :
       {"propertyNames", "dependentRequired", "dependentSchemas", "dependencies"})
    if (place.find(keyword) != nullptr)
      reader.note(place, keyword, "it cannot be enforced during generation");
  const Json* patterns = place.find("patternProperties");
  if (patterns == nullptr) return found;
  if (!patterns->is_object()) place.refuse("'patternProperties' is not an object");
  for (const auto& [pattern, schema] : patterns->as_object()) {
    const SchemaPlace& child = reader.child(place, schema, "patternProperties", pattern);
    try {
      found.patterns.push_back({pattern, pattern_graph(pattern, Matching::search), &child});
    } catch (const GrammarLimit& limit) {
      child.refuse(limit.what());
    } catch (const Error& error) {
      reader.note(place, "patternProperties", error.what());
      continue;
    }
    reader.spend(child, found.patterns.back().graph.states());
  }
  return found;
}

// Adds the schemas that the value of a property must satisfy.
void add_schemas(Conjunction& schemas, const ObjectKeywords& keywords, std::string_view name,
                 SchemaReader& reader) {
  const SchemaPlace& place = *keywords.place;
  reader.spend(place, 1);
  bool is_known = false;
  if (const auto found = keywords.properties.find(name); found != keywords.properties.end()) {
    schemas.insert(&reader.child(place, *found->second, "properties", name));
    is_known = true;
  }
  for (const ObjectKeywords::Pattern& pattern : keywords.patterns) {
    size_t steps = 0;
    const bool matches = pattern.graph.contains(name, steps);
    reader.spend(place, steps);
    if (!matches) continue;
    schemas.insert(pattern.schema);
    is_known = true;
  }
  if (!is_known && keywords.additional != nullptr)
    schemas.insert(&reader.child(place, *keywords.additional, "additionalProperties"));
}

// Names that one of the patterns matches.
CharacterGraph any_of(const std::vector<ObjectKeywords::Pattern>& patterns) {
  if (patterns.size() == 1) return patterns[0].graph;
  std::string all;
  for (const ObjectKeywords::Pattern& pattern : patterns)
    all += fmt::format("{}(?:{})", all.empty() ? "" : "|", pattern.text);
  return pattern_graph(all, Matching::search);
}

}  // namespace

struct SchemaCompiler::ObjectShape {
  struct Property {
    std::string_view name;
    Conjunction schemas;
    bool required = false;
  };
  std::vector<Property> properties;
  bool has_others = false;
  Conjunction others;                           // schemas of the values of other properties
  std::vector<CharacterGraph> name_conditions;  // conditions on the names of other properties
  CountBounds count;
};

SchemaCompiler::ObjectShape SchemaCompiler::shape_of(const Conjunction& places) {
  ObjectShape shape;
  std::vector<ObjectKeywords> all;
  std::unordered_map<std::string_view, size_t> index;
  const auto property = [&](std::string_view name) -> ObjectShape::Property& {
    const auto [found, is_new] = index.try_emplace(name, shape.properties.size());
    if (is_new) shape.properties.push_back({name, {}, false});
    return shape.properties[found->second];
  };
  for (const SchemaPlace* place : places) {
    all.push_back(keywords_of(*place, reader_));
    narrow(shape.count, reader_, *place, "minProperties", "maxProperties", most_held_);
    if (const Json* properties = place->find("properties"))
      for (const auto& [name, schema] : properties->as_object()) property(name);
  }
  for (const SchemaPlace* place : places) {
    const Json* required = place->find("required");
    if (required == nullptr) continue;
    if (!required->is_array()) place->refuse("'required' is not a list");
    for (const Json& name : required->as_array()) {
      if (!name.is_string()) place->refuse("'required' is not a list of strings");
      property(name.as_string()).required = true;
    }
  }
  for (ObjectShape::Property& one : shape.properties)
    for (const ObjectKeywords& keywords : all)
      add_schemas(one.schemas, keywords, one.name, reader_);

  // Other properties: allowed if a schema has patterns or additionalProperties, or if none lists
  // properties.
  size_t patterns = 0;
  bool lists = false, speaks = false;
  for (const ObjectKeywords& keywords : all) {
    patterns += keywords.patterns.size();
    lists |= keywords.place->find("properties") != nullptr;
    speaks |= keywords.additional != nullptr;
  }
  shape.has_others = speaks || patterns > 0 || !lists;
  const Json closed(false);
  for (const ObjectKeywords& keywords : all) {
    if (!keywords.patterns.empty()) {
      shape.name_conditions.push_back(any_of(keywords.patterns));
      if (patterns == 1) {
        shape.others.insert(keywords.patterns[0].schema);
      } else {
        reader_.note(*keywords.place, "patternProperties",
                     "with more than one pattern, values are not matched to their pattern");
      }
    } else if (keywords.additional != nullptr) {
      if (*keywords.additional == closed) shape.has_others = false;
      shape.others.insert(
          &reader_.child(*keywords.place, *keywords.additional, "additionalProperties"));
    }
  }
  return shape;
}

// A rule of the names, with their quotes, that other properties may have.
int32_t SchemaCompiler::other_names(const ObjectShape& shape) {
  const int32_t rule = network_.add_rule();
  const auto [from, to] = network_.rules()[static_cast<size_t>(rule)];
  std::vector<CharacterGraph> conditions = shape.name_conditions;
  if (!shape.properties.empty()) {
    std::vector<std::string_view> names;
    for (const ObjectShape::Property& property : shape.properties) names.push_back(property.name);
    conditions.push_back(CharacterGraph::all_but(names));
  }
  if (conditions.empty()) {
    text_.add_string(from, to);
    return rule;
  }
  if (conditions.size() > 1)
    conditions = {CharacterGraph::intersection(conditions, 0, -1, pattern_steps_)};
  add_quoted(from, to, conditions[0]);
  return rule;
}

void SchemaCompiler::add_object(int32_t from, int32_t to, const Conjunction& places) {
  if (places.empty()) return text_.add_any_object(from, to);
  const ObjectShape shape = shape_of(places);
  const CountBounds& count = shape.count;
  if (count.minimum > 1 && shape.has_others) {  // others may be the same property several times
    for (const SchemaPlace* place : places)
      if (place->find("minProperties") != nullptr)
        reader_.note(*place, "minProperties", "property names may be repeated");
  }
  if (count.maximum >= 0 && count.minimum > count.maximum)
    from = needed(from, **places.begin(), "'minProperties' is above 'maxProperties'");

  // States by the number of properties so far, up to the largest number that matters.
  const auto most = static_cast<size_t>(std::max({int64_t{1}, count.minimum, count.maximum}));
  const auto add_states = [&] {
    std::vector<int32_t> states(most + 1);
    std::ranges::generate(states, [&] { return network_.add_state(); });
    return states;
  };
  std::vector<int32_t> at = add_states();
  network_.add_bytes(from, at[0], '{', '{');
  // Adds a property after at[n]. add_key and add_text create its states once for each n that
  // follows.
  const auto add_property = [&](const std::vector<int32_t>& next, auto&& add_key,
                                const Conjunction& schemas) {
    std::vector<int32_t> keys(most + 1, -1);
    for (size_t n = 0; n <= most; ++n) {
      if (count.maximum >= 0 && std::cmp_equal(n, count.maximum)) continue;
      int32_t& key = keys[std::min(n + 1, most)];
      if (key < 0) {
        key = network_.add_state();
        const int32_t value = network_.add_state();
        add_key(key, value);
        add_value(value, next[std::min(n + 1, most)], schemas);
      }
      if (n == 0) {
        network_.add_empty(at[n], key);
      } else {
        text_.add_separator(at[n], key, ',');
      }
    }
  };
  for (const ObjectShape::Property& property : shape.properties) {
    const std::vector<int32_t> next = add_states();
    const auto add_key = [&](int32_t key, int32_t value) {
      text_.add_key(key, value, property.name);
    };
    add_property(next, add_key, property.schemas);
    if (!property.required)
      for (size_t n = 0; n <= most; ++n) network_.add_empty(at[n], next[n]);
    at = next;
  }
  if (shape.has_others) {
    const int32_t names = other_names(shape);
    const auto add_key = [&](int32_t key, int32_t value) {
      const int32_t behind = network_.add_state();
      network_.add_call(key, behind, names);
      text_.add_separator(behind, value, ':');
    };
    add_property(at, add_key, shape.others);
  }
  for (size_t n = 0; n <= most; ++n)
    if (std::cmp_greater_equal(n, count.minimum)) network_.add_bytes(at[n], to, '}', '}');
}

}  // namespace megatron::inference
