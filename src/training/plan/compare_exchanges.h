// Compares the ways in which context-parallel ranks can exchange tokens.
#pragma once

#include "models/model.h"
#include "plan/plan.h"
#include "settings/settings.h"
#include "training/task.h"

namespace megatron::training {

// Runs a step of the settled run with each exchange on the meta device. nullopt without context
// parallelism.
std::optional<plan::ContextExchanges> compare_exchanges(const settings::TrainSettings& settled,
                                                        const models::Model& model,
                                                        const Task* task = nullptr);

}  // namespace megatron::training
