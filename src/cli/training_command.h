// What the commands that train share.
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "cli/options.h"
#include "settings/settings.h"

namespace megatron::cli {

struct TrainingCommand {
  std::string_view name, description;
  // Completes settings that the command derives from others, after the flags are read.
  std::function<void(settings::TrainSettings&)> complete = [](settings::TrainSettings&) {};
};

// Parses the arguments into `fields`, which write to `settings`, and trains; returns the exit code.
// before: called with the completed settings; a code that it returns ends the command.
int run_training(
    const TrainingCommand& command, settings::TrainSettings& settings, Fields& fields,
    const Arguments& arguments,
    const std::function<std::optional<int>()>& before = [] { return std::nullopt; });

}  // namespace megatron::cli
