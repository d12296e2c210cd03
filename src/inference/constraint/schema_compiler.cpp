#include "inference/constraint/schema_compiler.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "inference/constraint/formats.h"
#include "inference/constraint/pattern.h"

namespace megatron::inference {
namespace {

using namespace json_type;

// True if the schema does not restrict values.
bool is_free(const SchemaPlace& place) {
  if (place.schema->is_bool()) return place.schema->as_bool();
  return place.schema->is_object() &&
         std::ranges::all_of(place.schema->as_object(),
                             [](const auto& member) { return is_annotation(member.first); });
}

bool is_reference(const SchemaPlace& place) {
  return place.find("$ref") != nullptr &&
         std::ranges::all_of(place.schema->as_object(), [](const auto& member) {
           return member.first == "$ref" || is_annotation(member.first);
         });
}

bool speaks_of(const SchemaPlace& place, uint8_t type) {
  return std::ranges::any_of(place.schema->as_object(), [&](const auto& member) {
    return (types_of_keyword(member.first) & type) != 0;
  });
}

}  // namespace

void SchemaCompiler::add_document(int32_t from, int32_t to, const SchemaDocument& document) {
  const SchemaPlace& root = reader_.root(document);
  const int32_t start = network_.add_state();
  network_.add_empty(from, start);
  documents_.emplace_back(start, &root);
  add_value(start, to, {&root});
}

void SchemaCompiler::add_calls(int32_t from, int32_t to, std::span<const SchemaDocument> tools) {
  for (const SchemaDocument& tool : tools) {
    const int32_t open = network_.add_state(), name = network_.add_state(),
                  behind_name = network_.add_state(), key = network_.add_state(),
                  value = network_.add_state(), behind = network_.add_state();
    network_.add_bytes(from, open, '{', '{');
    text_.add_key(open, name, "name");
    network_.add_text(name, behind_name, Json(tool.name).dump());
    text_.add_separator(behind_name, key, ',');
    text_.add_key(key, value, "arguments");
    add_document(value, behind, tool);
    network_.add_bytes(behind, to, '}', '}');
  }
}

void SchemaCompiler::finish() {
  while (!queue_.empty()) {
    const Rule next = std::move(queue_.back());
    queue_.pop_back();
    const Network::Rule ends = network_.rules()[static_cast<size_t>(next.rule)];
    try {
      add_type(ends.start, ends.final, next.values);
    } catch (const PlacedLimit&) {
      throw;
    } catch (const GrammarLimit& limit) {
      if (next.values.places.empty()) throw;
      throw PlacedLimit(**next.values.places.begin(), limit.what());
    }
  }
  const std::vector<bool> live = network_.live(Network::Bytes().set());
  for (const auto& [start, root] : documents_) {
    if (live[static_cast<size_t>(start)]) continue;
    for (const Needed& one : needed_)
      if (!live[static_cast<size_t>(one.state)] && one.place->document == root->document)
        one.place->refuse(one.reason);
    if (const SchemaPlace* endless = reader_.endless())
      endless->refuse(fmt::format(
          "no value satisfies it: '$ref' leads from '{}' back to itself in an endless cycle",
          (*endless->schema)["$ref"].as_string()));
    root->refuse(
        "no value satisfies it: its conditions exclude each other, or every value would have to "
        "contain another one, endlessly");
  }
}

int32_t SchemaCompiler::needed(int32_t from, const SchemaPlace& place, std::string reason) {
  const int32_t state = network_.add_state();
  network_.add_empty(from, state);
  needed_.push_back({state, &place, std::move(reason)});
  return state;
}

void SchemaCompiler::add_value(int32_t from, int32_t to, Conjunction schemas) {
  for (const int32_t rule : rules_of(std::move(schemas))) network_.add_call(from, to, rule);
}

const std::vector<int32_t>& SchemaCompiler::rules_of(Conjunction schemas) {
  std::erase_if(schemas, [](const SchemaPlace* place) { return is_free(*place); });
  for (int i = 0; i < 100 && schemas.size() == 1 && is_reference(**schemas.begin()); ++i) {
    const SchemaPlace& target = reader_.target(**schemas.begin());
    schemas.clear();
    if (!is_free(target)) schemas.insert(&target);
  }
  std::vector<size_t> key;
  for (const SchemaPlace* place : schemas) key.push_back(place->number);
  const auto [found, is_new] = rules_.try_emplace(std::move(key));
  std::vector<int32_t>& rules = found->second;
  if (!is_new) return rules;
  if (schemas.empty()) return rules = text_.any_values();
  std::vector<std::string> values;
  for (Alternative& alternative : reader_.alternatives(schemas)) {
    if (alternative.values) {
      for (const Json& value : satisfying(alternative)) values.push_back(value.dump());
      continue;
    }
    if (alternative.types == kAll && alternative.places.empty()) {
      rules.insert(rules.end(), text_.any_values().begin(), text_.any_values().end());
      continue;
    }
    for (const uint8_t type : {kNull, kBoolean, kString, kInteger, kNumber, kObject, kArray}) {
      if (type == kInteger ? (alternative.types & kNumber) == kInteger
                           : (alternative.types & type) == type)
        rules.push_back(rule_of(type, alternative.places));
    }
  }
  if (!values.empty()) rules.push_back(rule_of(std::move(values)));
  std::ranges::sort(rules);
  rules.erase(std::ranges::unique(rules).begin(), rules.end());
  return rules;
}

// Conjunctions that restrict the type in the same way share one rule.
int32_t SchemaCompiler::rule_of(uint8_t type, const Conjunction& places) {
  Alternative values{type, std::nullopt, {}};
  std::vector<size_t> numbers;
  for (const SchemaPlace* place : places) {
    if (!speaks_of(*place, type)) continue;
    values.places.insert(place);
    numbers.push_back(place->number);
  }
  const auto [found, is_new] = typed_.try_emplace({type, std::move(numbers)}, 0);
  if (!is_new) return found->second;
  found->second = network_.add_rule();
  queue_.push_back({found->second, std::move(values)});
  return found->second;
}

int32_t SchemaCompiler::rule_of(std::vector<std::string> values) {
  const auto [found, is_new] = listed_.try_emplace(std::move(values), 0);
  if (!is_new) return found->second;
  found->second = network_.add_rule();
  const Network::Rule rule = network_.rules()[static_cast<size_t>(found->second)];
  text_.add_texts(rule.start, rule.final, found->first);
  return found->second;
}

// Returns the listed values of an alternative that also satisfy its other keywords.
Json::Array SchemaCompiler::satisfying(const Alternative& alternative) {
  NumberRange range;
  range.integer = false;
  CountBounds lengths;
  std::vector<CharacterGraph> conditions;
  if ((alternative.types & kNumber) != 0)
    for (const SchemaPlace* place : alternative.places)
      if (has_number_bounds(*place)) narrow(range, reader_, *place);
  if ((alternative.types & kString) != 0) {
    conditions = text_conditions(alternative.places);
    for (const SchemaPlace* place : alternative.places)
      narrow(lengths, reader_, *place, "minLength", "maxLength", kMaximumCount);
  }
  for (const SchemaPlace* place : alternative.places) {
    for (const auto& [keyword, value] : place->schema->as_object())
      if ((types_of_keyword(keyword) & alternative.types & (kArray | kObject)) != 0)
        reader_.note(*place, keyword, "it is not checked against the values of 'enum' and 'const'");
  }
  Json::Array found;
  for (const Json& value : *alternative.values) {
    if (value.is_number() && !contains(range, value)) continue;
    if (value.is_string()) {
      const std::string& text = value.as_string();
      const auto size = count_characters(text);
      if (size < lengths.minimum || (lengths.maximum >= 0 && size > lengths.maximum)) continue;
      size_t steps = 0;
      const bool fits =
          std::ranges::all_of(conditions, [&](auto& one) { return one.contains(text, steps); });
      if (!conditions.empty()) reader_.spend(**alternative.places.begin(), steps);
      if (!fits) continue;
    }
    found.push_back(value);
  }
  return found;
}

void SchemaCompiler::add_type(int32_t from, int32_t to, const Alternative& values) {
  switch (values.types) {
    case kNull: return network_.add_text(from, to, "null");
    case kBoolean: return text_.add_texts(from, to, {"true", "false"});
    case kString: return add_string(from, to, values.places);
    case kArray: return add_array(from, to, values.places);
    case kObject: return add_object(from, to, values.places);
    default: return add_number(from, to, values.places, values.types == kInteger);
  }
}

void SchemaCompiler::add_array(int32_t from, int32_t to, const Conjunction& places) {
  CountBounds bounds;
  size_t prefix = 0;
  const auto first_items = [](const SchemaPlace& place) -> std::pair<const char*, const Json*> {
    for (const char* keyword : {"prefixItems", "items"}) {  // in draft 7, items may be a list
      const Json* list = place.find(keyword);
      if (list != nullptr && list->is_array()) return {keyword, list};
    }
    return {nullptr, nullptr};
  };
  for (const SchemaPlace* place : places) {
    narrow(bounds, reader_, *place, "minItems", "maxItems", most_held_);
    if (const auto [keyword, list] = first_items(*place); list != nullptr)
      prefix = std::max(prefix, list->as_array().size());
    if (const Json* unique = place->find("uniqueItems"); unique && *unique != Json(false))
      reader_.note(*place, "uniqueItems", "uniqueness of items cannot be enforced");
    if (place->find("contains") != nullptr)
      reader_.note(*place, "contains", "it cannot be enforced during generation");
  }
  std::vector<std::vector<int32_t>> rules;  // by item; the last entry applies to all further items
  for (size_t i = 0; i <= prefix; ++i) {
    Conjunction schemas;
    for (const SchemaPlace* place : places) {
      reader_.spend(*place, 1);
      const auto [keyword, list] = first_items(*place);
      const bool is_old = list != nullptr && keyword == std::string_view("items");
      const char* others = is_old ? "additionalItems" : "items";
      if (list != nullptr && i < list->as_array().size()) {
        schemas.insert(&reader_.child(*place, list->as_array()[i], keyword, std::to_string(i)));
      } else if (const Json* rest = place->find(others)) {
        schemas.insert(&reader_.child(*place, *rest, others));
      }
    }
    rules.push_back(rules_of(std::move(schemas)));
  }
  if (bounds.maximum >= 0 && bounds.minimum > bounds.maximum)
    from = needed(from, **places.begin(),
                  fmt::format("'minItems' {} is above 'maxItems' {}: no value satisfies both",
                              bounds.minimum, bounds.maximum));
  text_.add_list(from, to, rules, bounds.minimum, bounds.maximum);
}

// Each pattern and format that a grammar can enforce.
std::vector<CharacterGraph> SchemaCompiler::text_conditions(const Conjunction& places) {
  std::vector<CharacterGraph> conditions;
  for (const SchemaPlace* place : places) {
    for (const char* keyword : {"pattern", "format"}) {
      const Json* value = place->find(keyword);
      if (value == nullptr) continue;
      if (!value->is_string()) place->refuse(fmt::format("'{}' is not a string", keyword));
      const bool is_format = keyword == std::string_view("format");
      const std::string pattern =
          is_format ? format_pattern(value->as_string()) : value->as_string();
      if (is_format && pattern.empty()) {
        reader_.note(*place, keyword,
                     fmt::format("the format '{}' is not supported; supported are {}",
                                 value->as_string(), known_formats()));
        continue;
      }
      try {
        conditions.push_back(
            pattern_graph(pattern, is_format ? Matching::whole : Matching::search));
      } catch (const GrammarLimit& limit) {
        place->refuse(fmt::format("the {} '{}': {}", keyword, value->as_string(), limit.what()));
      } catch (const Error& error) {
        reader_.note(*place, keyword, error.what());
        continue;
      }
      reader_.spend(*place, conditions.back().states());
    }
  }
  return conditions;
}

void SchemaCompiler::add_string(int32_t from, int32_t to, const Conjunction& places) {
  CountBounds bounds;
  for (const SchemaPlace* place : places)
    narrow(bounds, reader_, *place, "minLength", "maxLength", most_held_);
  std::vector<CharacterGraph> conditions = text_conditions(places);
  if (!places.empty())
    from = needed(from, **places.begin(),
                  "no string satisfies all of its patterns, formats and lengths");
  const bool bounded = bounds.minimum > 0 || bounds.maximum >= 0;
  if (bounded && bounds.maximum >= 0 && bounds.minimum > bounds.maximum) return;
  if (conditions.empty()) return text_.add_string(from, to, bounds.minimum, bounds.maximum);
  if (bounded || conditions.size() > 1)
    conditions = {
        CharacterGraph::intersection(conditions, bounds.minimum, bounds.maximum, pattern_steps_)};
  add_quoted(from, to, conditions[0]);
}

void SchemaCompiler::add_quoted(int32_t from, int32_t to, const CharacterGraph& text) {
  const int32_t start = network_.add_state(), end = network_.add_state();
  network_.add_bytes(from, start, '"', '"');
  text.emit(network_, start, end, Spelling::json);
  network_.add_bytes(end, to, '"', '"');
}

void SchemaCompiler::add_number(int32_t from, int32_t to, const Conjunction& places, bool integer) {
  NumberRange range;
  range.integer = integer;
  bool bounded = integer;
  for (const SchemaPlace* place : places) {
    if (!has_number_bounds(*place)) continue;
    bounded = true;
    narrow(range, reader_, *place);
  }
  if (!bounded) return add_any_number(network_, from, to);
  if (!places.empty())
    from = needed(from, **places.begin(),
                  range.integer ? "no integer of up to 18 digits lies within its bounds"
                                : "no number of up to 15 digits lies within its bounds");
  inference::add_number(network_, from, to, range);
}

}  // namespace megatron::inference
