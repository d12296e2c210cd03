// Configurations of mixers of several parts.
#pragma once

#include "nn/attention.h"
#include "nn/mlp.h"
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

// A state space that reads the output of a transformer block whose weights several layers share
// (Glorioso et al. 2024, Zamba2). With e the output of the embedding,
//   y = state_space(norm(x + projection mlp(norm(attention(norm([x | e]))))).
// Norms and projection: those inside the block are shared, the last norm and the projection are the
// layer's own.
struct SharedBlockConfig {
  int64_t block = 0;  // layers with this number share their block
  nn::AttentionConfig attention;
  nn::MlpConfig mlp;
  // Ranks of low-rank additions of the layer's own to the queries, keys and values, and to the
  // MLP's first matrix; 0: none.
  int64_t attention_rank = 0, mlp_rank = 0;
  nn::StateSpaceConfig state_space;

  bool operator==(const SharedBlockConfig&) const = default;
};

}  // namespace megatron::models
