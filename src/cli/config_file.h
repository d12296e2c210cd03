// Flags in a YAML file.
#pragma once

#include <string>
#include <vector>

#include "base/fields.h"

namespace megatron::cli {

// One flag of a file.
struct ConfigEntry {
  std::string name;                 // as written: "num-layers", or "num_layers"
  std::vector<std::string> values;  // one of a scalar, any number of a list
  bool is_list = false;
  std::string where;  // "run.yaml:3"
};

// The flags of a file in its order:
//
//   num-layers: 12            a flag's name without dashes (_ counts as -) and its value
//   bf16: true                a switch: true or false
//   data-path: [0.7, a, b]    a flag of many values
//   optimizer: {lr: 1e-3}     a map is a group of flags; its name is free
//   save: ${HOME}/runs/a      ${NAME} is a variable of the environment; $${ is ${
//
// Throws Error naming file and line for what is no such file: a key without a value, a list in a
// list, a variable that is not set, a file above 1 MiB or 10000 flags.
std::vector<ConfigEntry> read_config(const std::string& path);

// The field that a key names, or null: exactly, or with - for each _.
Field* find_by_key(Fields& fields, const std::string& key);

// Such a file with every field's value; what nothing has set is marked. heads: lines of comment on
// top.
std::string config_text(const Fields& fields, const std::vector<std::string>& heads);

}  // namespace megatron::cli
