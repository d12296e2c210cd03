// Log-probabilities of a reference model that are computed once, before a run, and kept in a file.
#pragma once

#include <functional>
#include <memory>

#include "training/reference_pass.h"
#include "training/run_plan.h"

namespace megatron::training {

// --precompute-reference: for each data set of the run a file next to the data, or in
// --data-cache-path. Its name is a digest of everything that the values are made from: the weights,
// the rows of tokens, precision, device and how ranks divide a sequence's work. A file that is
// damaged is made again, with a warning. model: is filled with the reference model's weights and
// computes the values, if there is no file yet. Shows its progress on rank 0. Collective.
std::unique_ptr<ReferenceSource> stored_reference(const RunPlan& plan, TrainedModel& model);

// On rank 0, the values of a set's tokens that count, row after row; on others, nothing. begins:
// index of each row's first value, then their number. progress: called with the number of rows
// done. Collective. Without data: zeros.
std::vector<double> values_of_rows(LossPass& pass, const data::Dataset& rows,
                                   std::span<const int64_t> begins, int64_t micro_batch,
                                   int64_t seq_length,
                                   const std::function<void(int64_t)>& progress = {});

}  // namespace megatron::training
