// Gathers the whole model of a run on its first rank, however it is divided, to generate texts
// during training.
#pragma once

#include <functional>

#include "training/trained_model.h"

namespace megatron::training {

// Collective over `world`, the ranks of the run. Calls the function with the whole model on rank 0;
// the other ranks return without it. If a model replica has a single rank, it is the rank's own
// model, with parameters gathered among the data-parallel ranks; otherwise rank 0 builds another
// model, tensor by tensor from the ranks' parts, and releases its memory at the end.
void on_first_rank(TrainedModel& trained, const models::Model& model, DType type,
                   comm::Group& world, const std::function<void(const models::Stage& whole)>& use);

}  // namespace megatron::training
