// Help texts of a command's flags.
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
  bool megatrons = false;  // the command reports the status of Megatron-LM's other flags
  std::vector<std::string> rules = {};  // sentences on flags that exclude or require each other
};

// Prints the help that the arguments ask for and returns the exit code; nullopt if they do not ask
// for help.
//
//   -h, --help           every flag; for commands with many flags, the common ones of each group
//   --help GROUP, all    commands with many flags: a whole group, the rules, or all flags and rules
//   --help-search WORD   flags with WORD in their name or text, rules on such flags, and
//                        Megatron-LM's flags with WORD in their name; exit code 1 if none is found
//
// Throws Error for an unknown group.
std::optional<int> print_help(const Help& help, const std::vector<std::string>& arguments);

// True if the arguments ask for help.
bool asks_for_help(const std::vector<std::string>& arguments);

}  // namespace megatron::cli
