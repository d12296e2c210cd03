#include "inference/constraint/schema_reader.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/text_parts.h"
#include "inference/constraint/number_range.h"
#include "inference/constraint/schema_keywords.h"
#include "tokenizers/regex/regex_syntax.h"

namespace megatron::inference {
namespace {

constexpr size_t kMaximumReferences = 100;  // limit for consecutive references to a constant

std::string escaped(std::string_view key) {
  std::string out;
  for (const char c : key) out += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  return out;
}

std::string unescaped(std::string_view token) {
  std::string out;
  for (size_t i = 0; i < token.size(); ++i) {
    if (token[i] == '~' && i + 1 < token.size() && (token[i + 1] == '0' || token[i + 1] == '1')) {
      out += token[++i] == '0' ? '~' : '/';
    } else {
      out += token[i];
    }
  }
  return out;
}

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      const auto high = tokenizers::hexadecimal_digit(static_cast<uint8_t>(text[i + 1]));
      const auto low = tokenizers::hexadecimal_digit(static_cast<uint8_t>(text[i + 2]));
      if (high && low) {
        out += static_cast<char>(*high * 16 + *low);
        i += 2;
        continue;
      }
    }
    out += text[i];
  }
  return out;
}

uint8_t types_of_values(const Json::Array& values) {
  uint8_t types = 0;
  for (const Json& value : values) types |= type_of(value);
  return types;
}

// The types that a schema without "type" applies to, by its keywords.
uint8_t implied_types(const Conjunction& places) {
  uint8_t types = 0;
  for (const SchemaPlace* place : places) {
    for (const auto& [keyword, value] : place->schema->as_object())
      types |= keyword == "format" ? json_type::kString : types_of_keyword(keyword);
  }
  return types == 0 ? json_type::kAll : types;
}

}  // namespace

uint8_t type_of(const Json& value) {
  if (value.is_null()) return json_type::kNull;
  if (value.is_bool()) return json_type::kBoolean;
  if (value.is_string()) return json_type::kString;
  if (value.is_array()) return json_type::kArray;
  if (value.is_object()) return json_type::kObject;
  return Decimal(value).places == 0 ? json_type::kInteger : json_type::kFraction;
}

bool same_value(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number() && a.is_integer() != b.is_integer())
    return a.as_number() == b.as_number();
  return a == b;
}

void SchemaPlace::refuse(std::string_view reason) const {
  fail("the JSON schema at '{}{}': {}", document->name, pointer, reason);
}

PlacedLimit::PlacedLimit(const SchemaPlace& place, std::string_view reason)
    : GrammarLimit(fmt::format("the JSON schema at '{}{}': {}", place.document->name, place.pointer,
                               reason)) {}

// Incomplete alternatives, each with the schemas that it has still to satisfy.
class SchemaReader::Expansion {
 public:
  Expansion(SchemaReader& reader, bool for_texts) : reader_(reader), for_texts_(for_texts) {}

  std::vector<Alternative> run(const Conjunction& conjunction) {
    Open first;
    for (const SchemaPlace* place : conjunction) first.pending.push_back(within(*place, nullptr));
    std::ranges::reverse(first.pending);
    open_.push_back(std::move(first));
    while (!open_.empty()) {
      Open one = std::move(open_.back());
      open_.pop_back();
      if (read_all(one)) divide(std::move(one));
    }
    return std::move(found_);
  }

 private:
  // A schema and those that led to it for the same value.
  struct Chain {
    const SchemaPlace* place;
    std::shared_ptr<const Chain> before;
  };
  using Pending = std::shared_ptr<const Chain>;
  struct Open {
    Alternative so_far;
    bool typed = false;  // types are named explicitly, not implied
    std::vector<Pending> pending;
    std::vector<std::vector<Pending>> unions;  // one of each list must match
    std::set<const SchemaPlace*> done;
  };

  static Pending within(const SchemaPlace& place, Pending before) {
    return std::make_shared<const Chain>(Chain{&place, std::move(before)});
  }

  // Returns false if no value satisfies it.
  bool read_all(Open& one) {
    while (!one.pending.empty()) {
      const Pending next = std::move(one.pending.back());
      one.pending.pop_back();
      if (!one.done.insert(next->place).second) continue;
      reader_.spend(*next->place, 1);
      if (!read(one, next)) return false;
    }
    return true;
  }

  bool read(Open& one, const Pending& next) {
    const SchemaPlace& place = *next->place;
    if (place.schema->is_bool()) return place.schema->as_bool();
    if (!place.schema->is_object()) place.refuse("a schema must be an object, true or false");
    note_others(reader_, place);
    if (place.find("type") != nullptr) {
      const uint8_t types = types_named(reader_, place);
      if (place.document->strict && (types & json_type::kObject) != 0 && !place.find("const") &&
          !place.find("enum"))
        check_strict_object(place);
      one.so_far.types &= types;
      one.typed = true;
    }
    if (!read_values(one.so_far, place)) return false;
    const auto& members = place.schema->as_object();
    if (std::ranges::any_of(members, [](auto& m) { return types_of_keyword(m.first) != 0; }))
      one.so_far.places.insert(&place);
    if (place.find("$ref") != nullptr && !follow(one, next)) return false;
    read_lists(one, next);
    return one.so_far.types != 0;
  }

  bool read_values(Alternative& so_far, const SchemaPlace& place) {
    const auto narrow = [&](const Json::Array& values) {
      reader_.spend(place, values.size() / 16);
      if (so_far.values) {
        reader_.spend(place, so_far.values->size() * values.size());
        std::erase_if(*so_far.values, [&](const Json& old) {
          return std::ranges::none_of(values, [&](const Json& v) { return same_value(old, v); });
        });
      } else {
        so_far.values = values;
      }
      so_far.types &= types_of_values(*so_far.values);
    };
    if (const Json* list = place.find("enum")) {
      if (!list->is_array() || list->as_array().empty())
        place.refuse("'enum' is not a list of at least one value");
      narrow(list->as_array());
    }
    if (const Json* only = place.find("const")) narrow({*only});
    return so_far.types != 0;
  }

  bool follow(Open& one, const Pending& next) {
    const SchemaPlace& target = reader_.target(*next->place);
    for (const Chain* link = next.get(); link != nullptr; link = link->before.get()) {
      reader_.spend(*next->place, 1);
      if (link->place != &target) continue;
      if (reader_.endless_ == nullptr) reader_.endless_ = next->place;
      return false;
    }
    one.pending.push_back(within(target, next));
    return true;
  }

  void read_lists(Open& one, const Pending& next) {
    const SchemaPlace& place = *next->place;
    for (const std::string_view keyword : {"allOf", "anyOf", "oneOf"}) {
      const Json* list = place.find(keyword);
      if (list == nullptr) continue;
      if (!list->is_array() || list->as_array().empty())
        place.refuse(fmt::format("'{}' is not a list of at least one schema", keyword));
      std::vector<Pending> parts;
      for (size_t i = 0; i < list->as_array().size(); ++i)
        parts.push_back(
            within(reader_.child(place, list->as_array()[i], keyword, std::to_string(i)), next));
      reader_.spend(place, parts.size());
      if (keyword == "allOf") {
        one.pending.insert(one.pending.end(), parts.rbegin(), parts.rend());
        continue;
      }
      if (keyword == "oneOf" && for_texts_ && reader_.compared_.insert(&place).second &&
          !reader_.exclude_each_other(place, list->as_array(), keyword))
        reader_.note(place, keyword, "more than one of its schemas may be satisfied; use 'anyOf'");
      one.unions.push_back(std::move(parts));
    }
  }

  // One alternative for each schema of a union that is left, or the alternative itself.
  void divide(Open one) {
    if (one.unions.empty()) return finish(std::move(one));
    const std::vector<Pending> parts = std::move(one.unions.back());
    one.unions.pop_back();
    for (size_t i = parts.size(); i-- > 0;) {
      reader_.spend(*parts[i]->place, 1 + one.done.size() + one.unions.size());
      Open branch = one;
      branch.pending.push_back(parts[i]);
      open_.push_back(std::move(branch));
    }
  }

  void finish(Open one) {
    Alternative& all = one.so_far;
    if (all.values) {
      std::erase_if(*all.values, [&](const Json& v) { return (type_of(v) & all.types) == 0; });
      if (all.values->empty()) return;
      all.types = types_of_values(*all.values);
    } else if (!one.typed && for_texts_) {
      all.types &= implied_types(all.places);
    }
    if (all.types != 0) found_.push_back(std::move(all));
  }

  SchemaReader& reader_;
  // False if schemas are only compared: types that their keywords imply are then not used.
  const bool for_texts_;
  std::vector<Open> open_;  // the first alternative last
  std::vector<Alternative> found_;
};

std::vector<Alternative> SchemaReader::alternatives(const Conjunction& conjunction) {
  return Expansion(*this, true).run(conjunction);
}

const SchemaPlace& SchemaReader::place_of(const Json& schema, const SchemaDocument& document,
                                          std::string pointer) {
  const auto [found, is_new] = known_.try_emplace(&schema, nullptr);
  if (is_new) {
    places_.push_back({&schema, &document, std::move(pointer), places_.size()});
    found->second = &places_.back();
  }
  return *found->second;
}

const SchemaPlace& SchemaReader::root(const SchemaDocument& document) {
  return place_of(*document.root, document, "#");
}

const SchemaPlace& SchemaReader::child(const SchemaPlace& place, const Json& schema,
                                       std::string_view keyword) {
  return place_of(schema, *place.document, place.pointer + "/" + escaped(keyword));
}

const SchemaPlace& SchemaReader::child(const SchemaPlace& place, const Json& schema,
                                       std::string_view keyword, std::string_view name) {
  return place_of(schema, *place.document,
                  place.pointer + "/" + escaped(keyword) + "/" + escaped(name));
}

const SchemaPlace& SchemaReader::target(const SchemaPlace& place) {
  const Json& reference = (*place.schema)["$ref"];
  if (!reference.is_string()) place.refuse("'$ref' is not a string");
  const std::string& written = reference.as_string();
  if (!written.starts_with('#') || (written.size() > 1 && written[1] != '/'))
    return named_target(place, written);
  const std::string decoded = percent_decoded(written.substr(1));
  const Json* at = place.document->root;
  std::string pointer = "#";
  std::string_view rest = decoded;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('/', 1), rest.size());
    const std::string token = unescaped(rest.substr(1, end - 1));
    rest.remove_prefix(end);
    const auto index = parse_number<size_t>(token);
    const Json* next = at->is_object() ? at->find(token) : nullptr;
    if (at->is_array() && index && *index < at->as_array().size()) next = &at->as_array()[*index];
    if (next == nullptr)
      place.refuse(
          fmt::format("'$ref' is '{}', and there is no '{}' in '{}'", written, token, pointer));
    at = next;
    pointer += "/" + escaped(token);
  }
  return place_of(*at, *place.document, std::move(pointer));
}

// Schemas within the document may have names: "$anchor", or "$id" as it is written.
const SchemaPlace& SchemaReader::named_target(const SchemaPlace& place,
                                              const std::string& written) {
  struct Visited {
    const Json* schema;
    std::string pointer;
  };
  std::vector<Visited> open = {{place.document->root, "#"}};
  while (!open.empty()) {
    const Visited at = std::move(open.back());
    open.pop_back();
    spend(place, 1);
    if (at.schema->is_array()) {
      const Json::Array& elements = at.schema->as_array();
      for (size_t i = 0; i < elements.size(); ++i)
        open.push_back({&elements[i], fmt::format("{}/{}", at.pointer, i)});
    }
    if (!at.schema->is_object()) continue;
    const Json *anchor = at.schema->find("$anchor"), *id = at.schema->find("$id");
    const bool found =
        (anchor != nullptr && written.starts_with('#') && *anchor == Json(written.substr(1))) ||
        (id != nullptr && *id == Json(written));
    if (found) return place_of(*at.schema, *place.document, at.pointer);
    for (const auto& [key, value] : at.schema->as_object())
      open.push_back({&value, at.pointer + "/" + escaped(key)});
  }
  static const Json kAnyValue(true);
  note(place, "$ref", fmt::format("no schema in this document is called '{}'", written));
  return place_of(kAnyValue, *place.document, place.pointer + "/$ref");
}

void SchemaReader::note(const SchemaPlace& place, std::string_view keyword,
                        std::string_view reason) {
  if (place.document->strict)
    place.refuse(fmt::format("the keyword '{}' is not supported: {}", keyword, reason));
  notes_.insert(place.document->name + place.pointer + "/" + escaped(keyword));
}

void SchemaReader::spend(const SchemaPlace& place, size_t steps) {
  if ((steps_ += steps) <= kMaximumSteps) return;
  throw PlacedLimit(place,
                    fmt::format("it takes more than {} steps to read; lower the number of its "
                                "properties, values and unions, or of the unions that are combined",
                                kMaximumSteps));
}

// True if no value satisfies two of the branches. Also false if there are too many to compare.
bool SchemaReader::exclude_each_other(const SchemaPlace& place, const Json::Array& branches,
                                      std::string_view keyword) {
  constexpr size_t kMaximumCompared = 400;
  std::vector<std::vector<Alternative>> all;
  size_t count = 0;
  bool constants = true;  // each branch lists its values
  for (size_t i = 0; i < branches.size(); ++i) {
    all.push_back(
        Expansion(*this, false).run({&child(place, branches[i], keyword, std::to_string(i))}));
    count += all.back().size();
    for (const Alternative& one : all.back()) constants = constants && one.values;
  }
  if (constants) return values_differ(place, all);
  if (count > kMaximumCompared) return false;
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      for (const Alternative& a : all[i])
        for (const Alternative& b : all[j])
          if (!disjoint(place, a, b)) return false;
    }
  }
  return true;
}

bool SchemaReader::values_differ(const SchemaPlace& place,
                                 const std::vector<std::vector<Alternative>>& branches) {
  std::map<std::string, size_t> branch_of;
  for (size_t i = 0; i < branches.size(); ++i) {
    for (const Alternative& alternative : branches[i]) {
      spend(place, alternative.values->size());
      for (const Json& value : *alternative.values) {
        const std::string text = value.is_number() ? Decimal(value).text() : value.dump();
        if (branch_of.try_emplace(text, i).first->second != i) return false;
      }
    }
  }
  return true;
}

// True if the two differ in their types or values, if both require a property with different
// values, or if one requires a property that the other does not allow.
bool SchemaReader::disjoint(const SchemaPlace& place, const Alternative& a, const Alternative& b) {
  const auto differ = [&](const Json::Array& ones, const Json::Array& others) {
    spend(place, ones.size() * others.size());
    return std::ranges::none_of(ones, [&](const Json& one) {
      return std::ranges::any_of(others, [&](const Json& v) { return same_value(one, v); });
    });
  };
  spend(place, 1);
  const uint8_t types = a.types & b.types;
  if (types == 0) return true;
  if (a.values && b.values) return differ(*a.values, *b.values);
  if (types != json_type::kObject) return false;
  for (const auto& [one, other] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    for (const std::string_view name : required_names(*one)) {
      spend(place, one->places.size() + other->places.size());
      if (has_no_place_for(*other, name)) return true;
      const auto ours = constants_of(*one, name), theirs = constants_of(*other, name);
      if (ours && theirs && differ(*ours, *theirs) && required_names(*other).contains(name))
        return true;
    }
  }
  return false;
}

std::set<std::string_view> SchemaReader::required_names(const Alternative& alternative) {
  std::set<std::string_view> names;
  for (const SchemaPlace* place : alternative.places) {
    const Json* list = place->find("required");
    if (list == nullptr || !list->is_array()) continue;
    for (const Json& name : list->as_array())
      if (name.is_string()) names.insert(name.as_string());
    spend(*place, list->as_array().size());
  }
  return names;
}

bool SchemaReader::has_no_place_for(const Alternative& alternative, std::string_view name) {
  return std::ranges::any_of(alternative.places, [&](const SchemaPlace* place) {
    const Json *properties = place->find("properties"),
               *others = place->find("additionalProperties");
    return others != nullptr && *others == Json(false) &&
           place->find("patternProperties") == nullptr &&
           (properties == nullptr || !properties->is_object() || !properties->contains(name));
  });
}

// The values that a property may have, or nothing if they are not listed.
std::optional<Json::Array> SchemaReader::constants_of(const Alternative& alternative,
                                                      std::string_view name) {
  for (const SchemaPlace* place : alternative.places) {
    const Json* properties = place->find("properties");
    const Json* schema =
        properties != nullptr && properties->is_object() ? properties->find(name) : nullptr;
    if (schema == nullptr) continue;
    const SchemaPlace* at = &child(*place, *schema, "properties", name);
    for (size_t i = 0; i < kMaximumReferences && at->find("$ref") != nullptr; ++i)
      at = &target(*at);
    if (const Json* only = at->find("const")) return Json::Array{*only};
    if (const Json* list = at->find("enum"); list != nullptr && list->is_array())
      return list->as_array();
  }
  return std::nullopt;
}

}  // namespace megatron::inference
