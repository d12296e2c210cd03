// Flags with which a run would fit that does not.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "models/model.h"
#include "plan/plan.h"
#include "settings/settings.h"

namespace megatron::training {

// A plan without suggestions. Throws Error where flags forbid each other.
using PlanOf = std::function<plan::Plan(const settings::TrainSettings&, const models::Model&)>;

// Each with what it would need then, tried by a plan of its own. plan: of `settled`, which does not
// fit. First those that keep the run's result (but for the digits of a type); where none does, all
// of them together. Where that is not enough either: what gives another result, which the text
// says (a smaller global batch, an optimizer with less state, shorter sequences, a smaller model),
// and then several machines and GPUs. Never empty.
std::vector<std::string> find_suggestions(const settings::TrainSettings& settled,
                                          const models::Model& model, const plan::Plan& plan,
                                          const PlanOf& plan_of);

}  // namespace megatron::training
