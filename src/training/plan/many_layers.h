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

// The plan of a model from those of three depths, where every figure of kernels and traffic grows
// alike from the first to the second and from the second to the third, and those of memory but for
// 1% of them (the holes between blocks do not come evenly); nullopt: they do not.
// What does not grow is `whole`'s: model, flops and Megatron-LM's estimate are already in it. The
// result is not exact.
std::optional<plan::Plan> deepened(const std::array<plan::Plan, 3>& plans, const Depths& depths,
                                   plan::Plan whole);

// Sets the time of the deep plan's step and kernels from those of the third depth, scaling each
// kernel by its operations or bytes.
void take_time(plan::Plan& deep, const plan::Plan& timed);

}  // namespace megatron::training
