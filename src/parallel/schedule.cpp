#include "parallel/schedule.h"

#include <algorithm>

#include "base/error.h"

namespace megatron::parallel {

Schedule one_f_one_b(int stage, int stages, int micro_batches) {
  MG_ASSERT(stages >= 1 && stage >= 0 && stage < stages && micro_batches >= 0);
  const int warm_up = std::min(stages - stage - 1, micro_batches);
  Schedule schedule;
  schedule.reserve(2 * static_cast<size_t>(micro_batches));
  for (int m = 0; m < warm_up; ++m) schedule.push_back({Action::Kind::forward, 0, m});
  for (int m = warm_up; m < micro_batches; ++m) {
    schedule.push_back({Action::Kind::forward, 0, m});
    schedule.push_back({Action::Kind::backward, 0, m - warm_up});
  }
  for (int m = micro_batches - warm_up; m < micro_batches; ++m)
    schedule.push_back({Action::Kind::backward, 0, m});
  return schedule;
}

}  // namespace megatron::parallel
