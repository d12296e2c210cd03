// The lines that Megatron-LM prints of what a run will need, to the letter.
#pragma once

#include <string>

#include "plan/megatron_memory.h"

namespace megatron::plan {

std::string megatron_report(const MegatronShape& shape, const MegatronLayout& layout);

}  // namespace megatron::plan
