// Upcycling: experts made from the feed-forward blocks of a dense model, from which training
// continues (Komatsuzaki et al. 2023; from parts of the blocks: He et al. 2024).
#pragma once

#include <functional>
#include <string>

#include "models/model.h"
#include "models/moe_flags.h"
#include "parallel/placement.h"

namespace megatron::models {

struct UpcyclingFlags {
  MoeFlags moe;             // of the new experts; their width is that of the parts
  int64_t granularity = 1;  // G
  // Family to save as; default: the first that can represent the model.
  std::optional<std::string> family;
};

// A dense block is cut along its width into G parts (granularity), and expert e of E gets part e
// mod G: the experts are E / G copies of the block, one after another. Router rows within a copy
// are equal, so a token routed to k experts (a multiple of G) passes through k / G whole copies.
// Down-projections are scaled by G / s and their biases by 1 / s, where s is the sum of a token's
// weights when all logits are equal. If that sum is constant, the model computes what the dense one
// does.
struct UpcycledModel {
  // Source of a parameter's initial values.
  struct Source {
    parallel::Placement
        placement;       // in whole tensors: of the dense model's directory, or randomly drawn ones
    bool drawn = false;  // drawn by the parameter's initialization (parallel::Init)
    double factor = 1;   // factor of the values
  };

  Model model;
  // Source for a parameter's name and its whole shape over all ranks.
  std::function<Source(const std::string& name, const Shape& whole)> source;
  std::string summary;  // for the log
};

}  // namespace megatron::models
