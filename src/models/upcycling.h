// Experts made of the feed-forward blocks of a dense model, from which training goes on (Komatsuzaki et al. 2023; of
// parts of the blocks: He et al. 2024).
#pragma once

#include <functional>
#include <string>

#include "models/model.h"
#include "models/moe_flags.h"
#include "parallel/placement.h"

namespace megatron::models {

struct UpcyclingFlags {
  MoeFlags moe;                       // of the experts; their width is that of the parts
  int64_t granularity = 1;            // G
  std::optional<std::string> family;  // to save as; default the first that can hold the model
};

// Of G parts (granularity) of the width of a block, expert e of E has part e mod G: E / G copies of the block lie one
// after another. The router's rows of a copy are equal, so that a token that goes through k experts, a multiple of G,
// goes through k / G whole copies. Down-projections are multiplied by G / s and their biases by 1 / s, where s is the
// sum of a token's weights when all logits are equal: where that sum never changes, the model computes what the dense
// one does.
struct UpcycledModel {
  // What a parameter begins with.
  struct Source {
    parallel::Placement
        placement;       // over whole tensors: of the dense model's directory, or drawn ones
    bool drawn = false;  // by the law of the parameter (parallel::Init)
    double factor = 1;   // of the values
  };

  Model model;
  // By a parameter's name and the shape of all ranks' slices together.
  std::function<Source(const std::string& name, const Shape& whole)> source;
  std::string summary;  // for the log
};

}  // namespace megatron::models
