// The micro-batches of a run's steps, of which the next one's are read while a step runs.
#pragma once

#include <vector>

#include "corpus/prefetch.h"
#include "training/run_plan.h"

namespace megatron::training {

class StepFeed {
 public:
  // From sample `consumed` to the run's last, the share of this rank of `ranks`, the data-parallel
  // ones. Borrowed.
  StepFeed(const RunPlan& plan, int64_t consumed, const comm::Group& ranks);

  // Those of the step that begins with sample `consumed`; they stay until the next call.
  std::span<const corpus::HostBatch> read(int64_t consumed);
  // The same; read() gives them once more.
  std::span<const corpus::HostBatch> peek(int64_t consumed);
  double waited() const { return data_.waited(); }  // seconds

 private:
  const data::BatchSchedule& schedule_;
  corpus::Prefetcher data_;
  std::vector<corpus::HostBatch> micro_batches_;  // of the last step; keep their memory
  bool peeked_ = false;
};

}  // namespace megatron::training
