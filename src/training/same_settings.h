// Compares the settings with which the processes of a run were started, before anything else.
// Processes with different settings would train a mixture of two models, or wait for each other
// forever.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/fields.h"
#include "training/same_values.h"

namespace megatron::training {

// Kind of comparison of a flag's values.
enum class Comparison {
  value,        // as text; the default for flags that same_settings.cpp does not list
  presence,     // whether it is given
  path,         // as an absolute path
  device,       // the kind of device that it resolves to
  file,         // content of the file that it names, or its text if it names none
  texts,        // content of the files that --input lists
  tokenizer,    // content of a tokenizer's file or directory
  token_files,  // weights, and content of token files
  checkpoint,   // the checkpoint or model at the path, and its content
  nothing,      // may differ
};
Comparison comparison_of(std::string_view flag);
// The flags that are not compared by value.
std::vector<std::string_view> flags_with_own_comparison();

// The command with the program's version, then each setting except those that may differ. A setting
// that cannot be read has the reason as its value. ranks: number of ranks of the run.
std::vector<ComparedSetting> compared_settings(std::string_view command, const Fields& fields,
                                               int ranks);

}  // namespace megatron::training
