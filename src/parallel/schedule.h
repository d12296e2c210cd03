// Pipeline schedules as pure functions: the list of actions of one stage. `training` executes it,
// the planner simulates it, tests check it without any model.
#pragma once

#include <vector>

namespace megatron::parallel {

struct Action {
  enum class Kind { forward, backward, weight } kind = Kind::forward;
  int chunk = 0;  // model chunk of the stage (interleaved schedules)
  int micro_batch = 0;
  bool operator==(const Action&) const = default;
};
using Schedule = std::vector<Action>;

// 1F1B (Narayanan et al. 2019, PipeDream-Flush): min(stages - stage - 1, micro_batches) warm-up
// forwards, then one forward and one backward in turn, then the remaining backwards. With one
// stage: F0 B0 F1 B1 ...
Schedule one_f_one_b(int stage, int stages, int micro_batches);

}  // namespace megatron::parallel
