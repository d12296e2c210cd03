// The micro-batches of a run's steps; those of the next step are prefetched while a step runs.
#pragma once

#include <vector>

#include "corpus/prefetch.h"
#include "training/run_plan.h"

namespace megatron::training {

class StepFeed {
 public:
  // Serves this rank's share of the samples from `consumed` to the run's last, and of their tokens.
  // All arguments are borrowed.
  StepFeed(const RunPlan& plan, int64_t consumed, const parallel::Ranks& ranks);

  // Returns the micro-batches of the step that begins with sample `consumed`, which the caller may
  // complete; valid until the next call.
  std::span<corpus::HostBatch> read(int64_t consumed);
  // Like read(), but the next read() returns the same micro-batches.
  std::span<corpus::HostBatch> peek(int64_t consumed);
  double waited() const { return data_.waited(); }  // seconds spent waiting for data

 private:
  const data::BatchSchedule& schedule_;
  corpus::Prefetcher data_;
  std::vector<corpus::HostBatch> micro_batches_;  // of the last step; their memory is reused
  bool peeked_ = false;
};

}  // namespace megatron::training
