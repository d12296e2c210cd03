// The report that Megatron-LM prints about a run's requirements, character by character.
#pragma once

#include <string>

#include "plan/megatron_memory.h"

namespace megatron::plan {

std::string megatron_report(const MegatronShape& shape, const MegatronLayout& layout);

}  // namespace megatron::plan
