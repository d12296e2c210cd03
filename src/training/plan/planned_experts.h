// The buffers of experts in a run that is planned.
#pragma once

#include <optional>

#include "models/model.h"
#include "plan/recorder.h"
#include "settings/settings.h"

namespace megatron::training {

// Returns the expert rows in the run's steps, of which `work` is one; nullopt if no layer has
// experts.
std::optional<plan::ExpertRows> experts_of(const plan::StepWork& work,
                                           const settings::TrainSettings& settings,
                                           const models::Model& model);

// Throws Error naming --moe-skew, the limit and its cause if experts cannot be loaded so unevenly.
void check_skew(double skew, const std::optional<plan::ExpertRows>& experts);

}  // namespace megatron::training
