// One knob, one row: name, value, help, range, what it depends on. A component lists its settings
// here; flags, help text, validation, the saved configuration and the flag documentation all follow
// from that list.
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
  std::string initial;               // default as text; "" if there is none
  std::vector<std::string> choices;  // if not empty, the only accepted values
  bool is_switch = false;            // takes no value
  bool many = false;                 // takes one or more values
  // Sets the setting from text; a switch takes no value, or true or false. Throws Error naming the
  // flag, the value and what is accepted.
  std::function<void(const std::vector<std::string>& values)> set;
  std::function<std::string()> get;                   // current value as text
  std::function<std::vector<std::string>()> get_all;  // values of a field with `many`
  std::function<void()> restore;                      // restores the default
  struct Replaced {
    std::string name;
    std::function<bool(const Field&)> when;  // condition on this field's value
  };
  std::vector<Replaced> replaces;  // fields that it replaces: Fields::replace()
  // Reason why it has no effect with the current values, or "": of().
  std::function<std::string()> idle;
  std::optional<std::pair<int64_t, int64_t>> range;  // of an integer, inclusive: within()
  // Allowed together with a model that a file describes: with_any_model().
  bool beside_model = false;
  bool given = false;   // assign() was called
  std::string group;    // group in the help: Fields::begin_group()
  bool common = false;  // listed in the short help: in_short_help(), Fields::common()
  std::string where;    // position in the file that gave it, "run.yaml:3"

  // Further properties of a field, set on the result of Fields::add().
  Field& within(int64_t least, int64_t most) {
    range = {least, most};
    return *this;
  }
  // why: returns "" if the field has an effect with the current settings, else the setting that
  // prevents it, as the user set it: "--optimizer is adam".
  Field& of(std::function<std::string()> why) {
    idle = std::move(why);
    return *this;
  }
  Field& in_short_help() {
    common = true;
    return *this;
  }
  Field& with_any_model() {
    beside_model = true;
    return *this;
  }

  void assign(const std::vector<std::string>& values) {
    set(values);
    given = true;
    where.clear();
  }
  void unset() {
    restore();
    given = false;
    where.clear();
  }
};

class Fields {
 public:
  Field& add(std::string_view name, int64_t* value, std::string_view doc);
  Field& add(std::string_view name, double* value, std::string_view doc);
  Field& add(std::string_view name, std::string* value, std::string_view doc);
  Field& add(std::string_view name, std::optional<int64_t>* value, std::string_view doc);
  Field& add(std::string_view name, std::optional<double>* value, std::string_view doc);
  Field& add(std::string_view name, std::optional<std::string>* value, std::string_view doc);
  Field& add(std::string_view name, std::vector<std::string>* value, std::string_view doc);
  Field& add(std::string_view name, std::string* value, std::vector<std::string> choices,
             std::string_view doc);
  // A switch: if present, it sets *value to `to`.
  Field& add_switch(std::string_view name, bool* value, bool to, std::string_view doc);
  // An enumeration, with the names of its values.
  template <class E>
  Field& add_enum(std::string_view name, E* value, std::vector<std::pair<std::string, E>> values,
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
    return add_choice(name, std::move(names), std::move(set), std::move(get), doc);
  }

  // Mutually exclusive flags: each of `flags`, given on the command line, replaces `others` given
  // in a configuration file. when: called for a flag of `flags` once it is set; false: they do not
  // exclude each other.
  void replace(
      const std::vector<std::string>& flags, const std::vector<std::string>& others,
      const std::function<bool(const Field&)>& when = [](const Field&) { return true; });

  // Calls Field::of() for several fields.
  void of(const std::vector<std::string>& flags, const std::function<std::string()>& idle);

  // Sets the group, in help and documentation, of the fields added from now on. Commands with many
  // fields assign each to a group (cli/help.h has the names).
  void begin_group(std::string_view name) { group_ = name; }
  // Applies of(why) and with_any_model() to every field added from now on.
  void begin_mode(std::function<std::string()> why = {}, bool with_any_model = false) {
    mode_ = std::move(why);
    beside_model_ = with_any_model;
  }
  // Fields shown in the short help, which most users need.
  void common(const std::vector<std::string>& flags);

  // Throws Error for the first that is not within its range, naming both.
  void check() const;

  std::vector<Field>& all() { return fields_; }
  const std::vector<Field>& all() const { return fields_; }
  Field* find(std::string_view name);

 private:
  Field& add_choice(std::string_view name, std::vector<std::string> choices,
                    std::function<void(const std::string&)> set, std::function<std::string()> get,
                    std::string_view doc);
  Field& append(std::string_view name, std::string_view type, std::string_view doc);

  std::vector<Field> fields_;
  std::string group_;
  std::function<std::string()> mode_;
  bool beside_model_ = false;
};

// Name and value of each field that differs from its counterpart in `defaults`, which has the same
// fields.
std::vector<std::pair<std::string, std::string>> changed(const Fields& fields,
                                                         const Fields& defaults);

// One line for each mode that is off, with the flags that were given (in a file: with a value other
// than their default): "--lion-beta1 0.9, --lion-beta2 0.5 do nothing: --optimizer is adam".
std::vector<std::string> idle_notes(const Fields& fields);

// Candidate with the smallest edit distance to `word`; empty if none is near.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace megatron
