// Parses command lines into Fields.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/fields.h"
#include "cli/config_file.h"

namespace megatron::cli {

using Arguments = std::vector<std::string>;

// Sets the fields from the arguments. `--help` prints the command's help and returns exit code 0;
// otherwise nullopt is returned and the command continues. Throws Error for an unknown flag (naming
// the nearest known one) and for a missing or invalid value. usage: "megatron train [flags]".
//
//   --lr 0.1, --lr=0.1   values are passed on as written; the last of several counts
//   --input a b          a field of many values takes all up to the next flag; given again, more
//   --bf16, --bf16=true  a switch; --bf16=false is its opposite
//   --lr -1, -           numbers, "-" and text with a space are values though they begin with -;
//                        others need --flag=VALUE
//   --                   what follows are arguments without a flag
//
// positional: name and values of arguments without a flag: one each, the last takes the rest.
struct Positional {
  std::string name, doc;
  std::vector<std::string>* values = nullptr;
  bool required = true;
};
std::optional<int> parse(const std::string& usage, const std::string& description, Fields& fields,
                         const std::vector<Positional>& positional, const Arguments& arguments);

// Options of --print-config.
struct PrintConfig {
  // Throws Error if the command would refuse the settings before it opens a file.
  std::function<void()> check = [] {};
  size_t fields = SIZE_MAX;       // number of fields to print, from the first
  std::string* recipe = nullptr;  // receives the value of --recipe, also without --print-config
};

// Like parse(), for commands with Megatron-LM's flags. It also accepts
//
//   --config FILE        flags from files (config_file.h), applied in order before the command
//                        line. A later value replaces an earlier one, and so does a flag that
//                        excludes the earlier flag (Fields::replace).
//   --recipe NAME        a file that is part of the program (settings/recipes.h), applied before
//                        all others; for commands with the flags of `megatron train`
//   --print-config       prints the resulting configuration as such a file; exit code 0. If
//                        PrintConfig::check refuses it, throws that Error after printing.
//   other flags of Megatron-LM: ignored, refused or older spellings (flags/table.h). One Error
//   lists
//                        all that are refused.
//
// notes: receives the log lines about all this.
std::optional<int> parse_training(const std::string& usage, const std::string& description,
                                  Fields& fields, const Arguments& arguments,
                                  std::vector<std::string>& notes, const PrintConfig& print = {});

// Returns f's result. If f throws an Error that names flags set in files of --config, their lines
// are added.
template <class F>
auto naming_places(const Fields& fields, F&& f) {
  try {
    return f();
  } catch (const Error& e) {
    throw Error(with_places(e.what(), fields));
  }
}

}  // namespace megatron::cli
