// A plan for programs.
#pragma once

#include "base/json.h"
#include "plan/plan.h"

namespace megatron::plan {

// Keys are those of docs/plan.md; all are always there. Counts and bytes are integers, all their
// digits; what is not known is null.
Json to_json(const Plan& plan);

}  // namespace megatron::plan
