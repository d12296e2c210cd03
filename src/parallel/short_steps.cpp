#include "parallel/short_steps.h"

#include <algorithm>

namespace megatron::parallel {
namespace {

// Additional micro-batches until stages with different beginnings reach the same rhythm and
// messages in flight are released.
constexpr int64_t kSpare = 6;

}  // namespace

// A list repeats itself once the pipeline is full: an interleaved one with every group, another at
// the latest after as many micro-batches as there are stages, because of messages between them.
ShortSteps short_steps(const PipelineShape& shape, int stage, int64_t all) {
  if (shape.stages == 1 && shape.parts == 1)
    return {std::min<int64_t>(all, 2), std::min<int64_t>(all, 3)};
  const bool groups = shape.kind == ScheduleKind::interleaved;
  const int64_t together = groups ? std::max(shape.group, shape.stages) : 1;
  const int64_t period = groups ? together : shape.stages;
  const bool whole_groups = groups && all % together == 0;
  const int64_t some = (4 * shape.stages / together + 4) * together + all % together;
  const Schedule schedule = shape.schedule(stage, static_cast<int>(std::min(all, some)));
  int64_t live = 0;
  for (int chunk = 0; chunk < shape.chunks; ++chunk)
    live = std::max<int64_t>(live, live_micro_batches(schedule, chunk));
  const int64_t least = 2 * live + together + (whole_groups ? 0 : shape.stages + kSpare);
  if (least + period > all) return {all, all};
  const int64_t less = least + (all - least) % period;
  return {less, less + period};
}

}  // namespace megatron::parallel
