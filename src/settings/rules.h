// Rules between settings that exclude or require each other: one table for the checks, `--help
// rules`, --help-search and docs/flags.md. Limits of a single value are checked with its settings.
#pragma once

#include <string>
#include <vector>

#include "settings/settings.h"

namespace megatron::settings {

// Groups of rules that are checked together, once the settings they concern are final.
enum class RuleScope {
  flags,     // rules of the command line alone
  sizes,     // rules of parallel sizes
  parallel,  // rules of ParallelSettings
  memory,    // rules of recomputation, offloading and ParallelSettings
  layout,    // rules of a model that is divided; flags without effect on it are ignored
  graphs,    // rules of a run on a GPU
};

// Throws Error with the sentence of the first rule that the settings violate.
void check_rules(RuleScope scope, const TrainSettings& settings);

// All sentences, with "INT" or "TEXT" for values.
std::vector<std::string> rule_sentences();

}  // namespace megatron::settings
