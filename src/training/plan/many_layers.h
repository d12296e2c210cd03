// Extrapolated plans of models with so many layers that planning all of them would take long.
#pragma once

#include <array>
#include <functional>
#include <optional>

#include "models/model.h"
#include "plan/plan.h"
#include "settings/settings.h"

namespace megatron::training {

// Three equally spaced depths and the depth they represent, which is a whole number of those steps
// beyond the last: each is divided among pipeline stages, and recomputed, like that depth.
struct Depths {
  std::array<int64_t, 3> layers{};
  int64_t all = 0;
};

// Returns nullopt if there are few enough layers to plan all of them.
std::optional<Depths> depths_for(const settings::TrainSettings& settings, int64_t num_layers);

// Extrapolates the plan of a model from the plans of three depths. Returns nullopt unless every
// figure of kernels and traffic grows linearly over the three depths, and memory does within 1%
// (holes between blocks do not grow evenly). `whole` provides the figures that do not depend on the
// depths: model, flops and Megatron-LM's estimate. The result is not exact.
std::optional<plan::Plan> deepened(const std::array<plan::Plan, 3>& plans, const Depths& depths,
                                   plan::Plan whole);

// Sets the time of the deep plan's step and kernels from those of the third depth, scaling each
// kernel by its operations or bytes.
void take_time(plan::Plan& deep, const plan::Plan& timed);

}  // namespace megatron::training
