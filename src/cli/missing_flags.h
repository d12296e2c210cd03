// What a training run needs and a command line does not give.
#pragma once

#include "cli/options.h"
#include "settings/settings.h"

namespace megatron::cli {

// Throws one Error that names every flag that is needed and not given, with a command that gives all
// of them: the arguments with values for what lacks, with tokens of a data set in this folder, or
// synthetic ones. command: "train", or "plan", which needs less. arguments: those of the settings.
void require_flags(const settings::TrainSettings& settings, const std::string& command,
                   const Arguments& arguments);

}  // namespace megatron::cli
