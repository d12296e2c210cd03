// Totals of a step over its micro-batches and ranks, which the host reads at once.
#pragma once

#include <utility>
#include <vector>

#include "autograd/metrics.h"
#include "parallel/ranks.h"

namespace megatron::training {

class StepTotals {
 public:
  // metrics: the model's. Ranks and runtime are borrowed.
  StepTotals(Metrics metrics, const parallel::Ranks& ranks, Runtime& runtime)
      : metrics_(std::move(metrics)), ranks_(ranks), runtime_(runtime) {}

  // Allocates memory for `micro_batches` micro-batches. The metrics' sums keep their address, since
  // captured graphs refer to it.
  void make_room(int64_t micro_batches);
  void begin_step() { metrics_.begin_step(runtime_.stream()); }
  // 0-d f64: sum of the micro-batch's losses, on the last stage.
  Tensor loss(int64_t micro_batch) const { return totals_.slice(0, micro_batch, 1).view({}); }
  Metrics& metrics() { return metrics_; }

  struct Sums {
    double loss = 0, counted = 0;  // of all that counts; how many count
    std::vector<MetricValue> metrics;
  };
  // Sums over all ranks, each of which has `micro_batches` micro-batches. counted: how many of this
  // rank's tokens (or of what the objective counts) count. Collective. Without data: zeros.
  Sums over_ranks(int64_t micro_batches, double counted);

 private:
  Metrics metrics_;
  const parallel::Ranks& ranks_;
  Runtime& runtime_;
  // f64. sums_: all sums; totals_: the part with the losses of micro-batches followed by the
  // what counts.
  Tensor sums_, totals_;
};

}  // namespace megatron::training
