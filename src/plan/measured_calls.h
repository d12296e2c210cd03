// Times of calls shared by several plans, so that their step times differ by their other calls, not
// by noise.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "plan/recorder.h"

namespace megatron::plan {

struct StepTime;

class MeasuredCalls {
 public:
  // Stores the times of the calls. If a call is already stored, its first time is kept.
  void add(const StepWork& work, const StepTime& time);
  // Seconds of a call that does the same work. nullopt: none was measured, or its time depends on
  // more than its operands' forms (products of experts).
  std::optional<double> seconds(const WorkItem& item) const;
  std::optional<double> seconds(const CollectiveItem& item) const;

 private:
  std::vector<std::pair<WorkItem, double>> kernels_;
  std::vector<std::pair<CollectiveItem, double>> collectives_;
};

}  // namespace megatron::plan
