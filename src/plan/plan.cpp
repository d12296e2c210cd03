#include "plan/plan.h"

namespace megatron::plan {

int64_t Plan::parameter_count() const {
  int64_t sum = 0;
  for (const ParameterCount& p : parameters) sum += p.count;
  return sum;
}

int64_t Plan::process_bytes() const {
  return program + ranks_here * (memory.arena_bytes() + memory.host);
}

}  // namespace megatron::plan
