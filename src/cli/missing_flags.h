// Required flags of a training run that a command line lacks.
#pragma once

#include "cli/options.h"
#include "settings/settings.h"

namespace megatron::cli {

// Throws one Error that names every required flag that is missing, with a complete command: the
// arguments plus values for the missing flags, with tokens of a data set in this folder, or
// synthetic ones. command: "train", or "plan", which needs fewer. arguments: those that gave the
// settings.
void require_flags(const settings::TrainSettings& settings, const std::string& command,
                   const Arguments& arguments);

}  // namespace megatron::cli
