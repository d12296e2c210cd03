// Reads and writes flags in a YAML file.
#pragma once

#include <string>
#include <vector>

#include "base/fields.h"

namespace megatron::cli {

// One flag of a file, or the name of a group of flags, which precedes them.
struct ConfigEntry {
  std::string name;                 // as written: "num-layers", or "num_layers"
  std::vector<std::string> values;  // one for a scalar, any number for a list
  bool is_list = false, is_group = false;
  std::string where;  // "run.yaml:3"
};

// Reads the flags of a file, in its order:
//
//   num-layers: 12            a flag's name without dashes (_ counts as -) and its value
//   bf16: true                a switch: true or false
//   data-path: [0.7, a, b]    a flag of many values
//   schedule: {lr: 1e-3}      a map is a group of flags; its name is free, but no flag's
//   save: ${HOME}/runs/a      ${NAME} is a variable of the environment; $${ is ${
//
// Throws Error naming file and line for anything else: a key without a value, a list in a list, an
// unclosed quote, a variable that is not set, invalid UTF-8, a file above 1 MiB or 10000 flags.
std::vector<ConfigEntry> read_config(const std::string& path);
// The same for a file's content; path: its name in messages.
std::vector<ConfigEntry> parse_config(std::string content, const std::string& path);

// Returns the field that a key names, either exactly or with - for each _, or null.
Field* find_by_key(Fields& fields, const std::string& key);

// Writes such a file with the value of each of the first `count` fields; values that nothing has
// set are marked. heads: comment lines at the top.
std::string config_text(const Fields& fields, size_t count, const std::vector<std::string>& heads);

// Appends to an error's text the file lines that set the flags it names.
std::string with_places(std::string text, const Fields& fields);

}  // namespace megatron::cli
