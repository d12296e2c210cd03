// What a step adds up over its micro-batches and ranks, and the host reads at once.
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

  // Memory for so many micro-batches. That of the metrics' sums stays where it is, since recorded
  // work has its address.
  void make_room(int64_t micro_batches);
  void begin_step() { metrics_.begin_step(runtime_.stream()); }
  // 0-d f64: the sum of its losses, on the last stage.
  Tensor loss(int64_t micro_batch) const { return totals_.slice(0, micro_batch, 1).view({}); }
  Metrics& metrics() { return metrics_; }

  struct Sums {
    double loss = 0, tokens = 0;  // of all counted tokens; their number
    std::vector<MetricValue> metrics;
  };
  // Of all ranks, of which each has so many micro-batches. counted: their tokens of this rank.
  // Collective. Without data: zeros.
  Sums over_ranks(int64_t micro_batches, double counted);

 private:
  Metrics metrics_;
  const parallel::Ranks& ranks_;
  Runtime& runtime_;
  // f64: all of them; of these the losses of micro-batches, and then the counted tokens.
  Tensor sums_, totals_;
};

}  // namespace megatron::training
