// A run that goes on from a checkpoint: what it takes from there, and what must not have changed.
#pragma once

#include "training/run_plan.h"

namespace megatron::training {

// Fills schedules, optimizer steps, seed and changes of a plan whose beginning is a checkpoint.
// Throws Error where optimizer, precision or schedule are not the checkpoint's.
void settle_beginning(RunPlan& plan);

// Warns where the samples that follow are not those that would have followed: other data, or other
// epochs shuffled together, as the number of samples that are asked for decides. The data are open.
void check_data_order(const RunPlan& plan);

// Throws Error where --extend-to-iters would train at a learning rate of 0.
void check_extension(const RunPlan& plan);

}  // namespace megatron::training
