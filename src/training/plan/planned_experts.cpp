#include "training/plan/planned_experts.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "plan/expert_rows.h"

namespace megatron::training {

std::optional<plan::ExpertRows> experts_of(const plan::StepWork& work,
                                           const settings::TrainSettings& s,
                                           const models::Model& model) {
  const std::optional<models::ExpertFacts>& experts = model->facts().experts;
  auto rows = plan::expert_rows(work, experts ? experts->count : 1);
  if (!rows) return rows;
  const nn::RouterTraining training = s.shape.moe.training();
  rows->fixed = s.runtime.device_kind() == DeviceKind::cuda;
  const auto bounds = [&](double factor) {  // a large one leaves room for any load
    return factor > 0 && static_cast<double>(rows->room) >= factor * rows->even;
  };
  rows->padded = training.capacity_factor > 0 && training.padded;
  const bool bounded = rows->divided ? bounds(training.capacity_factor)
                                     : training.capacity_factor > 0 &&
                                           (training.capacity_factor < rows->most || rows->padded);
  if (bounded) {
    rows->bound = plan::ExpertRows::Bound::expert_capacity;
    rows->factor = training.capacity_factor;
    if (!rows->divided) rows->most = std::clamp(rows->factor, 1.0, rows->most);
  } else if (rows->divided && bounds(training.rank_capacity_factor)) {
    rows->bound = plan::ExpertRows::Bound::rank_capacity;
    rows->factor = training.rank_capacity_factor;
  }
  return rows;
}

void check_skew(double skew, const std::optional<plan::ExpertRows>& experts) {
  MG_CHECK(experts.has_value(),
           "--moe-skew is {:g}, but no layer has experts: leave it out, or give --num-experts",
           skew);
  const plan::ExpertRows& rows = *experts;
  const auto limit = [&]() -> std::string {
    switch (rows.bound) {
      case plan::ExpertRows::Bound::expert_capacity:
        return fmt::format(
            "the load that --moe-expert-capacity-factor {:g} allows; tokens above it are dropped",
            rows.factor);
      case plan::ExpertRows::Bound::rank_capacity:
        return fmt::format(
            "the load that --moe-expert-rank-capacity-factor {:g} allows; a step that needs more "
            "fails",
            rows.factor);
      case plan::ExpertRows::Bound::any_load: break;
    }
    return rows.divided ? "where one rank gets as many tokens as it can get"
                        : "where every token is routed to the same experts";
  };
  MG_CHECK(skew <= rows.most, "--moe-skew is {:g}; it must lie in [1, {:g}], {}", skew,
           std::floor(rows.most * 1e4) / 1e4, limit());
}

}  // namespace megatron::training
