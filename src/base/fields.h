// One knob, one line: a component lists its settings here; flags, help text, validation, the saved
// configuration and the flag documentation all follow from that list.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace megatron {

struct Field {
  std::string name;                  // flag name without dashes: "num-layers"
  std::string doc;                   // one sentence, with unit
  std::string type;                  // "INT", "FLOAT", "TEXT", "TEXT ...", "" for a switch
  std::string initial;               // default as text, "" when there is none
  std::vector<std::string> choices;  // not empty: the only values accepted
  bool is_switch = false;            // takes no value
  bool many = false;                 // takes one or more values
  // Sets the setting from text; a switch takes none, or true or false. Throws Error naming the
  // flag, the value and what is accepted.
  std::function<void(const std::vector<std::string>& values)> set;
  std::function<std::string()> get;                   // current value as text
  std::function<std::vector<std::string>()> get_all;  // of a field of many: its values
  bool given = false;                                 // assign() was called

  void assign(const std::vector<std::string>& values) {
    set(values);
    given = true;
  }
};

class Fields {
 public:
  void add(std::string_view name, int64_t* value, std::string_view doc);
  void add(std::string_view name, double* value, std::string_view doc);
  void add(std::string_view name, std::string* value, std::string_view doc);
  void add(std::string_view name, std::optional<int64_t>* value, std::string_view doc);
  void add(std::string_view name, std::optional<double>* value, std::string_view doc);
  void add(std::string_view name, std::optional<std::string>* value, std::string_view doc);
  void add(std::string_view name, std::vector<std::string>* value, std::string_view doc);
  void add(std::string_view name, std::string* value, std::vector<std::string> choices,
           std::string_view doc);
  // A switch: its presence sets *value to `to`.
  void add_switch(std::string_view name, bool* value, bool to, std::string_view doc);
  // An enumeration with the names of its values.
  template <class E>
  void add_enum(std::string_view name, E* value, std::vector<std::pair<std::string, E>> values,
                std::string_view doc) {
    std::vector<std::string> names;
    for (const auto& [text, unused] : values) names.push_back(text);
    auto get = [value, values] {
      for (const auto& [text, v] : values)
        if (v == *value) return text;
      return std::string();
    };
    auto set = [value, values](const std::string& text) {
      for (const auto& [t, v] : values)
        if (t == text) *value = v;
    };
    add_choice(name, std::move(names), std::move(set), std::move(get), doc);
  }

  std::vector<Field>& all() { return fields_; }
  const std::vector<Field>& all() const { return fields_; }
  Field* find(std::string_view name);

 private:
  void add_choice(std::string_view name, std::vector<std::string> choices,
                  std::function<void(const std::string&)> set, std::function<std::string()> get,
                  std::string_view doc);
  Field& append(std::string_view name, std::string_view type, std::string_view doc);

  std::vector<Field> fields_;
};

// Name and value of each field that differs from its namesake in `defaults`, of the same fields.
std::vector<std::pair<std::string, std::string>> changed(const Fields& fields,
                                                         const Fields& defaults);

// The candidate with the smallest edit distance to `word`; empty when none is near.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace megatron
