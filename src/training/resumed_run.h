// Resuming from a checkpoint: settings taken from it, and checks of those that must not change.
#pragma once

#include "training/run_plan.h"

namespace megatron::training {

// Finds the files with the run's training examples. Throws Error naming the first one that differs
// from those that the run was begun with, if it is resumed.
void find_examples(RunPlan& plan);

// Fills schedules, optimizer steps, seed and changes of a plan that resumes from a checkpoint.
// Throws Error if optimizer, precision or schedule differ from the checkpoint's.
void settle_beginning(RunPlan& plan);

// Warns if the following samples are not those that would have followed: other data, or a different
// grouping of epochs for shuffling, which depends on the number of requested samples. The data must
// be open.
void check_data_order(const RunPlan& plan);

// Throws Error if --extend-to-iters would train at a learning rate of 0.
void check_extension(const RunPlan& plan);

}  // namespace megatron::training
