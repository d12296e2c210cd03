// Configuration of a mixer of several parts.
#pragma once

#include "nn/attention.h"
#include "nn/state_space.h"

namespace megatron::models {

// The sum of attention and a state space, which read the same x.
struct HybridConfig {
  struct Factors {
    double in = 1, out = 1;  // of what a part reads and of what it gives
    bool operator==(const Factors&) const = default;
  };
  nn::AttentionConfig attention;
  nn::StateSpaceConfig state_space;
  Factors attention_factors, state_space_factors;

  bool operator==(const HybridConfig&) const = default;
};

}  // namespace megatron::models
