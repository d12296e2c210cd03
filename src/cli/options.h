// Command lines made from Fields.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/fields.h"

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

}  // namespace megatron::cli
