// Rows of experts in a step: how many their buffers have, how many of these are an expert's, and what calls cost then.
#pragma once

#include <optional>

#include "plan/plan.h"
#include "plan/recorder.h"

namespace megatron::plan {

// Of a model with so many experts a layer, as the calls of a step show: room, even, most and divided, the rest as it is
// by default. nullopt: no layer of them.
std::optional<ExpertRows> expert_rows(const StepWork& work, int64_t experts);

// Rows that there are where the fullest rank (not divided: expert) has `load` times the mean.
int64_t rows_at(const ExpertRows& rows, double load);

// How a call's buffer of rows is filled.
struct ExpertFill {
  int64_t rows = 0;  // that are an expert's; 0: all
  double fullest =
      1;  // the first expert's over the mean of the call's; the others have as many each
};
ExpertFill fill_at(const ExpertRows& rows, double load);

bool is_expert_product(const WorkItem& item);
// The same calls where products of experts compute `fill`'s rows alone; other kernels go through whole buffers.
StepWork filled(StepWork work, const ExpertFill& fill);

// The row behind the last one of the first `experts` of `all`, in a buffer of `room` rows.
int64_t rows_before(const ExpertFill& fill, int64_t room, int64_t experts, int64_t all);

}  // namespace megatron::plan
