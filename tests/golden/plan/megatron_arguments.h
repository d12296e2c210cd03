// Converts the arguments of the golden vectors to the input of the formulas.
#pragma once

#include "base/json.h"
#include "plan/megatron_memory.h"
#include "plan/megatron_shape.h"

namespace megatron::plan {

MegatronShape shape_from(const Json& arguments);
MegatronLayout layout_from(const Json& arguments, const Json& micro_batches);

}  // namespace megatron::plan
