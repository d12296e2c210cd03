#include "training/step_totals.h"

#include <numeric>

#include "kernels/table.h"
#include "training/rank_sums.h"

namespace megatron::training {

void StepTotals::make_room(int64_t micro_batches) {
  Arena& arena = runtime_.arena(MemoryClass::optimizer);
  if (!metrics_.empty() && !metrics_.sums().defined())
    metrics_.use(Tensor::empty(arena, {metrics_.size()}, DType::f64, "step.metrics"));
  if (totals_.defined() && totals_.size(0) == micro_batches + 1) return;
  sums_ = Tensor::empty(arena, {micro_batches + 1 + metrics_.size()}, DType::f64, "step.totals");
  totals_ = sums_.slice(0, 0, micro_batches + 1);
}

StepTotals::Sums StepTotals::over_ranks(int64_t micro_batches, double counted) {
  Stream& stream = runtime_.stream();
  const kernels::Table& table = kernels::table(stream);
  table.fill({.out = totals_.slice(0, micro_batches, 1), .value = counted}, stream);
  sum_over_tokens(totals_, ranks_, stream, "step.totals");
  if (!metrics_.empty()) {
    ranks_.world()
        .all_reduce(metrics_.sums(), comm::Reduce::sum, stream, "step.metrics")
        .wait(stream);
    table.copy({.x = metrics_.sums(), .out = sums_.slice(0, micro_batches + 1, metrics_.size())},
               stream);
  }
  if (!runtime_.device().has_data()) return {};
  stream.synchronize();
  const std::vector<double> all = to_doubles(sums_);
  const auto losses = all.begin(), count = losses + micro_batches;
  return {.loss = std::accumulate(losses, count, 0.0),
          .counted = *count,
          .metrics = metrics_.values(std::span(count + 1, all.end()))};
}

}  // namespace megatron::training
