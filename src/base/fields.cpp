#include "base/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace megatron {
namespace {

constexpr size_t kLongestWord = 256;  // nearest() takes time quadratic in it

using Values = std::vector<std::string>;

const std::string& single(const std::string& name, const Values& values) {
  MG_CHECK(values.size() == 1, "--{} takes one value, but {} were given", name, values.size());
  return values[0];
}

int64_t parse_integer(const std::string& name, const std::string& text) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  MG_CHECK(error != std::errc::result_out_of_range,
           "--{} is '{}', which does not fit in 64 bits; give an integer closer to 0", name, text);
  MG_CHECK(error == std::errc() && at == end, "--{} is '{}'; give an integer such as 12", name,
           text);
  return value;
}

double parse_double(const std::string& name, const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  MG_CHECK(error != std::errc::result_out_of_range,
           "--{} is '{}', which is out of range for a double; give a number closer to 1", name,
           text);
  MG_CHECK(error == std::errc() && at == end && std::isfinite(value),
           "--{} is '{}'; give a finite number such as 0.1 or 3e-4", name, text);
  // Steps compute in fp32, where a larger number would be infinite.
  MG_CHECK(std::abs(value) <= std::numeric_limits<float>::max(),
           "--{} is '{}', which is beyond fp32's largest number, 3.4e38; give a smaller one", name,
           text);
  return value;
}

// Conversion of text to a value, by the type of the value.
void assign(const std::string& name, const Values& values, int64_t* value) {
  *value = parse_integer(name, single(name, values));
}
void assign(const std::string& name, const Values& values, double* value) {
  *value = parse_double(name, single(name, values));
}
void assign(const std::string& name, const Values& values, std::string* value) {
  *value = single(name, values);
}
void assign(const std::string& name, const Values& values, Values* value) {
  MG_CHECK(!values.empty(), "--{} takes one or more values, but none was given", name);
  *value = values;
}
template <class T>
void assign(const std::string& name, const Values& values, std::optional<T>* value) {
  T parsed{};
  assign(name, values, &parsed);
  *value = std::move(parsed);
}

std::string text_of(int64_t value) { return fmt::format("{}", value); }
std::string text_of(double value) { return fmt::format("{}", value); }
std::string text_of(const std::string& value) { return value; }
std::string text_of(const Values& values) { return fmt::format("{}", fmt::join(values, " ")); }
template <class T>
std::string text_of(const std::optional<T>& value) {
  return value ? text_of(*value) : std::string();
}

template <class T>
Field& bind(Field& field, T* value) {
  field.set = [name = field.name, value](const Values& values) { assign(name, values, value); };
  field.get = [value] { return text_of(*value); };
  field.restore = [value, initial = *value] { *value = initial; };
  field.initial = field.get();
  return field;
}

// Optimal string alignment distance: insertion, deletion, replacement, transposition of two
// neighbours (Damerau 1964).
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), previous(b.size() + 1), current(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) previous[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        current[j] = std::min(current[j], before[j - 2] + 1);
      }
    }
    std::swap(before, previous);
    std::swap(previous, current);
  }
  return previous[b.size()];
}

}  // namespace

Field& Fields::add(std::string_view name, int64_t* value, std::string_view doc) {
  return bind(append(name, "INT", doc), value);
}
Field& Fields::add(std::string_view name, double* value, std::string_view doc) {
  return bind(append(name, "FLOAT", doc), value);
}
Field& Fields::add(std::string_view name, std::string* value, std::string_view doc) {
  return bind(append(name, "TEXT", doc), value);
}
Field& Fields::add(std::string_view name, std::optional<int64_t>* value, std::string_view doc) {
  return bind(append(name, "INT", doc), value);
}
Field& Fields::add(std::string_view name, std::optional<double>* value, std::string_view doc) {
  return bind(append(name, "FLOAT", doc), value);
}
Field& Fields::add(std::string_view name, std::optional<std::string>* value, std::string_view doc) {
  return bind(append(name, "TEXT", doc), value);
}
Field& Fields::add(std::string_view name, std::vector<std::string>* value, std::string_view doc) {
  Field& field = append(name, "TEXT ...", doc);
  field.many = true;
  field.get_all = [value] { return *value; };
  return bind(field, value);
}

Field& Fields::add(std::string_view name, std::string* value, std::vector<std::string> choices,
                   std::string_view doc) {
  return add_choice(
      name, std::move(choices), [value](const std::string& text) { *value = text; },
      [value] { return *value; }, doc);
}

Field& Fields::add_switch(std::string_view name, bool* value, bool to, std::string_view doc) {
  Field& field = append(name, "", doc);
  field.is_switch = true;
  field.set = [name = field.name, value, to](const Values& values) {
    MG_CHECK(
        values.empty() || (values.size() == 1 && (values[0] == "true" || values[0] == "false")),
        "--{} is a switch and takes no value (a configuration file: true or false); it got '{}'",
        name, fmt::join(values, " "));
    *value = values.empty() || values[0] == "true" ? to : !to;
  };
  field.get = [value, to] { return std::string(*value == to ? "true" : "false"); };
  field.restore = [value, initial = *value] { *value = initial; };
  field.initial = field.get();
  return field;
}

void Fields::replace(const std::vector<std::string>& flags, const std::vector<std::string>& others,
                     const std::function<bool(const Field&)>& when) {
  for (const std::string& flag : flags) {
    Field* const field = find(flag);
    MG_ASSERT(field != nullptr);
    for (const std::string& other : others) {
      MG_ASSERT(find(other) != nullptr);
      field->replaces.push_back({other, when});
    }
  }
}

void Fields::of(const std::vector<std::string>& flags, const std::function<std::string()>& idle) {
  for (const std::string& flag : flags) {
    Field* const field = find(flag);
    MG_ASSERT(field != nullptr && !field->idle);
    field->of(idle);
  }
}

void Fields::common(const std::vector<std::string>& flags) {
  for (const std::string& flag : flags) {
    Field* const field = find(flag);
    MG_ASSERT(field != nullptr);
    field->in_short_help();
  }
}

void Fields::check() const {
  for (const Field& field : fields_) {
    const std::string text = field.range ? field.get() : "";
    if (text.empty()) continue;  // not set
    const int64_t value = parse_integer(field.name, text);
    MG_CHECK(value >= field.range->first && value <= field.range->second,
             "--{} is {}; it must lie in [{}, {}]", field.name, value, field.range->first,
             field.range->second);
  }
}

Field* Fields::find(std::string_view name) {
  for (Field& field : fields_) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

Field& Fields::add_choice(std::string_view name, std::vector<std::string> choices,
                          std::function<void(const std::string&)> set,
                          std::function<std::string()> get, std::string_view doc) {
  Field& field = append(name, "TEXT", doc);
  field.set = [name = field.name, choices, set](const Values& values) {
    const std::string& text = single(name, values);
    if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
      const std::string near = nearest(text, choices);
      fail("--{} is '{}'; it can be {}{}", name, text, fmt::join(choices, ", "),
           near.empty() ? std::string() : fmt::format(" (did you mean '{}'?)", near));
    }
    set(text);
  };
  field.choices = std::move(choices);
  field.get = std::move(get);
  field.initial = field.get();
  field.restore = [set, initial = field.initial] { set(initial); };
  return field;
}

Field& Fields::append(std::string_view name, std::string_view type, std::string_view doc) {
  MG_ASSERT(!name.empty() && find(name) == nullptr);
  Field& field = fields_.emplace_back();
  field.name = name;
  field.type = type;
  field.doc = doc;
  field.group = group_;
  field.idle = mode_;
  field.beside_model = beside_model_;
  return field;
}

std::vector<std::pair<std::string, std::string>> changed(const Fields& fields,
                                                         const Fields& defaults) {
  MG_ASSERT(fields.all().size() == defaults.all().size());
  std::vector<std::pair<std::string, std::string>> values;
  for (size_t i = 0; i < fields.all().size(); ++i) {
    const Field& field = fields.all()[i];
    MG_ASSERT(field.name == defaults.all()[i].name);
    std::string value = field.get();
    // "a-b_c" is accepted as a second spelling of "a-b-c", for the same value.
    std::string dashes = field.name;
    std::replace(dashes.begin(), dashes.end(), '_', '-');
    const auto same = [&](const auto& other) { return other.first == dashes; };
    if (dashes != field.name && std::ranges::any_of(values, same)) continue;
    if (value != defaults.all()[i].get()) values.emplace_back(field.name, std::move(value));
  }
  return values;
}

std::vector<std::string> idle_notes(const Fields& fields) {
  // Condition that disables a field, and its flags.
  std::vector<std::pair<std::string, Values>> modes;
  for (const Field& field : fields.all()) {
    const bool usual = field.get() == field.initial;
    const bool said = field.given && !(usual && (field.is_switch || !field.where.empty()));
    std::string cause = said && field.idle ? field.idle() : "";
    if (cause.empty()) continue;
    auto mode = std::find_if(modes.begin(), modes.end(),
                             [&cause](const auto& m) { return m.first == cause; });
    if (mode == modes.end()) mode = modes.insert(mode, {std::move(cause), {}});
    mode->second.push_back(field.is_switch ? "--" + field.name
                                           : fmt::format("--{} {}", field.name, field.get()));
  }
  Values lines;
  for (const auto& [cause, flags] : modes)
    lines.push_back(fmt::format("{} {} no effect: {}", fmt::join(flags, ", "),
                                flags.size() == 1 ? "has" : "have", cause));
  return lines;
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  if (word.size() > kLongestWord) return {};
  std::string best;
  size_t best_distance = kLongestWord;
  for (const std::string& candidate : candidates) {
    const size_t longer = std::max(word.size(), candidate.size());
    if (longer > kLongestWord) continue;
    // A candidate is near if at most a quarter of its letters (rounded up) are wrong and at least
    // one is right.
    const size_t distance = edit_distance(word, candidate);
    if (distance > (longer + 3) / 4 || distance >= longer || distance >= best_distance) continue;
    best = candidate;
    best_distance = distance;
  }
  return best;
}

}  // namespace megatron
