// Command lines made from Fields. CLI11 is behind options.cpp.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/fields.h"

namespace megatron::cli {

using Arguments = std::vector<std::string>;

// Sets the fields from the arguments. `--help` prints the command's help and gives exit code 0;
// else nothing is returned and the command goes on. Throws Error for a flag that does not exist
// (naming the nearest that does), a missing or bad value. usage: "megatron train [flags]";
// positional: name and field of arguments without a flag.
struct Positional {
  std::string name, doc;
  std::vector<std::string>* values = nullptr;
  bool required = true;
};
std::optional<int> parse(const std::string& usage, const std::string& description, Fields& fields,
                         const std::vector<Positional>& positional, const Arguments& arguments);

}  // namespace megatron::cli
