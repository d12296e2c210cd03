// The whole model of a run on its first rank, however it is divided: for texts that it writes while
// it trains.
#pragma once

#include <functional>

#include "training/trained_model.h"

namespace megatron::training {

// Collective over `world`, the ranks of the run. Rank 0 is given the whole model, the others come
// back at once. Where the ranks of a model are one, it is the rank's own model, whose parameters
// are gathered among the data-parallel ranks; else rank 0 makes another, tensor by tensor from what
// the ranks hold, and gives its memory back at the end.
void on_first_rank(TrainedModel& trained, const models::Model& model, DType type,
                   comm::Group& world, const std::function<void(const models::Stage& whole)>& use);

}  // namespace megatron::training
