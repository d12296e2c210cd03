// Rows of experts in a step: the size of their buffers, how many of these rows belong to an expert,
// and the cost of calls at that fill.
#pragma once

#include <optional>

#include "plan/plan.h"
#include "plan/recorder.h"

namespace megatron::plan {

// Derives room, even, most and divided from a step's calls for a model with `experts` experts per
// layer; the other members keep their defaults. nullopt: no layer has experts.
std::optional<ExpertRows> expert_rows(const StepWork& work, int64_t experts);

// Number of rows if the fullest rank (if experts are not divided: the fullest expert) has `load`
// times the mean.
int64_t rows_at(const ExpertRows& rows, double load);

// Fill of a call's buffer of rows.
struct ExpertFill {
  int64_t rows = 0;  // rows that belong to an expert; 0: all
  double fullest =
      1;  // load of the first expert relative to the call's mean; the others share the rest evenly
};
ExpertFill fill_at(const ExpertRows& rows, double load);

bool is_expert_product(const WorkItem& item);
// The same calls with products of experts restricted to `fill`'s rows; other kernels process whole
// buffers.
StepWork filled(StepWork work, const ExpertFill& fill);

// Returns the number of rows of the first `experts` of `all` experts, in a buffer of `room` rows.
int64_t rows_before(const ExpertFill& fill, int64_t room, int64_t experts, int64_t all);

}  // namespace megatron::plan
