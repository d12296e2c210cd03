// Command lines made from Fields.
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

// Sets the fields from the arguments. `--help` prints the command's help and gives exit code 0;
// else nothing is returned and the command goes on. Throws Error for a flag that does not exist
// (naming the nearest that does), a missing or bad value. usage: "megatron train [flags]".
//
//   --lr 0.1, --lr=0.1   a value comes through as it was written; of several the last counts
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

// What --print-config does besides printing.
struct PrintConfig {
  // Throws Error for settings that the command would refuse before it opens a file.
  std::function<void()> check = [] {};
  size_t fields = SIZE_MAX;       // number of fields printed, from the first
  std::string* recipe = nullptr;  // becomes what --recipe names, also without --print-config
};

// As parse(), for commands whose flags are Megatron-LM's. Besides the fields there are
//
//   --config FILE        flags from a file (config_file.h), before those of the command line; of
//                        several files, and of file and command line, the last counts: also where
//                        it gives a flag that takes the place of another (Fields::replace)
//   --recipe NAME        such a file that is part of the program (settings/recipes.h), before all
//                        others; of commands that take the flags of `megatron train`
//   --print-config       prints the resulting configuration as such a file, and gives exit code 0;
//                        where PrintConfig::check refuses it, throws that Error behind the print
//   Megatron-LM's others ignored, refused or older spellings (flags/table.h). All that are refused
//                        are listed in one Error.
//
// notes: becomes what to tell of all this in the log, a line each.
std::optional<int> parse_training(const std::string& usage, const std::string& description,
                                  Fields& fields, const Arguments& arguments,
                                  std::vector<std::string>& notes, const PrintConfig& print = {});

// f's result. An Error that names flags which stand in files of --config also names their lines.
template <class F>
auto naming_places(const Fields& fields, F&& f) {
  try {
    return f();
  } catch (const Error& e) {
    throw Error(with_places(e.what(), fields));
  }
}

}  // namespace megatron::cli
