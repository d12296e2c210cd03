// Replacements for a mixer or a feed-forward block (Bercovich et al. 2024).
#pragma once

namespace megatron::models {

// A single matrix [H,H].
struct LinearConfig {
  bool operator==(const LinearConfig&) const = default;
};
// Nothing at all, not even the norm.
struct NoOp {
  bool operator==(const NoOp&) const = default;
};

}  // namespace megatron::models
