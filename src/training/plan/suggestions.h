// Suggests flags with which a run that does not fit would fit.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "models/model.h"
#include "plan/plan.h"
#include "settings/settings.h"

namespace megatron::training {

// Makes a plan without suggestions. Throws Error if flags conflict.
using PlanOf = std::function<plan::Plan(const settings::TrainSettings&, const models::Model&)>;

// Returns suggestions with the memory that each would need, every one tested by its own plan. plan:
// of `settled`, which does not fit. First come changes that keep the run's result (except the
// precision of a type); if none of them suffices, all of them together. If that is not enough
// either: changes that alter the result, as the text says (a smaller global batch, an optimizer
// with less state, shorter sequences, a smaller model), and then several machines and GPUs. Never
// empty.
std::vector<std::string> find_suggestions(const settings::TrainSettings& settled,
                                          const models::Model& model, const plan::Plan& plan,
                                          const PlanOf& plan_of);

}  // namespace megatron::training
