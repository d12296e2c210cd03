// What a command says of its flags.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/fields.h"

namespace megatron::cli {

struct Positional;

struct Help {
  std::string usage, description;
  const Fields& fields;
  const std::vector<Positional>& positional;
  bool megatrons = false;  // the command knows what becomes of Megatron-LM's other flags
  std::vector<std::string> rules = {};  // sentences on flags that exclude or need each other
};

// Prints what the arguments ask for, and gives the exit code; none: they ask for no help.
//
//   -h, --help           every flag; of a command with many, the common ones of each group
//   --help GROUP, all    of such a command: one group whole, the rules, or every flag and rule
//   --help-search WORD   flags with WORD in their name or text, rules on flags with it, and
//                        Megatron-LM's flags with it in their name; exit code 1 where there is none
//
// Throws Error for a group that the command does not have.
std::optional<int> print_help(const Help& help, const std::vector<std::string>& arguments);

// Whether arguments ask for help.
bool asks_for_help(const std::vector<std::string>& arguments);

}  // namespace megatron::cli
