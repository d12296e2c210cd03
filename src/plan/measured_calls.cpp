#include "plan/measured_calls.h"

#include "plan/expert_rows.h"
#include "plan/step_time.h"

namespace megatron::plan {
namespace {

bool alike(const WorkItem& a, const WorkItem& b) {
  return a.kernel == b.kernel && a.form == b.form && a.operands == b.operands;
}

bool alike(const CollectiveItem& a, const CollectiveItem& b) {
  return a.collective == b.collective && a.call == b.call && a.ranks == b.ranks &&
         a.bytes == b.bytes && a.to_others == b.to_others;
}

template <class Item>
std::optional<double> found(const std::vector<std::pair<Item, double>>& all, const Item& item) {
  for (const auto& [other, seconds] : all)
    if (alike(other, item)) return seconds;
  return std::nullopt;
}

template <class Item>
void keep(std::vector<std::pair<Item, double>>& all, const std::vector<Item>& items,
          const std::vector<double>& seconds) {
  for (size_t i = 0; i < items.size(); ++i)
    if (items[i].calls > 0 && seconds[i] >= 0 && !found(all, items[i]))
      all.emplace_back(items[i], seconds[i]);
}

}  // namespace

void MeasuredCalls::add(const StepWork& work, const StepTime& time) {
  keep(kernels_, work.kernels, time.kernels);
  keep(collectives_, work.collectives, time.collectives);
}

std::optional<double> MeasuredCalls::seconds(const WorkItem& item) const {
  return is_expert_product(item) ? std::nullopt : found(kernels_, item);
}

std::optional<double> MeasuredCalls::seconds(const CollectiveItem& item) const {
  return found(collectives_, item);
}

}  // namespace megatron::plan
