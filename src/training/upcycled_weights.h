// Loads the weights of a dense model into a model with experts.
#pragma once

#include "models/upcycling.h"
#include "training/whole_model.h"

namespace megatron::training {

struct UpcycledWeights {
  models::UpcycledModel experts;
  WholeModel dense;  // tensors of the dense model
};

// Fills the shards and states of `step`, whose model has experts, from the directory of the dense
// model (reading only this rank's part) and with initial values for the rest. tells: shows progress
// and logs a summary. Throws Error as load_weights() does.
void load_upcycled(const checkpoint::ModelDirectory& directory, const UpcycledWeights& weights,
                   const TrainStep& step, uint64_t seed, Runtime& runtime, bool tells);

}  // namespace megatron::training
