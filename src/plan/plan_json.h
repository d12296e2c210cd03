// Writes a plan as JSON for programs.
#pragma once

#include "base/json.h"
#include "plan/plan.h"

namespace megatron::plan {

// Keys are those of docs/plan.md; all are always present. Counts and bytes are exact integers;
// unknown values are null.
Json to_json(const Plan& plan);

}  // namespace megatron::plan
