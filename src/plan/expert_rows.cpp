#include "plan/expert_rows.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace megatron::plan {

std::optional<ExpertRows> expert_rows(const StepWork& work, int64_t experts) {
  std::vector<const WorkItem*> calls;
  for (const WorkItem& item : work.kernels)
    if (item.kernel == "expert_rows" && item.calls > 0) calls.push_back(&item);
  // If ranks gather what they need to drop choices over whole sequences (nn::Router::kept), the
  // first call does that.
  const bool drops = std::ranges::any_of(
      work.collectives, [](const CollectiveItem& item) { return item.call == "expert capacity"; });
  if (drops && calls.size() > 1) calls.erase(calls.begin());
  std::optional<ExpertRows> found;
  for (const WorkItem* call : calls) {
    const WorkItem& item = *call;
    const Shape& choices = item.operand("experts").shape;
    const int64_t held = item.operand("offsets").shape[0] - 1,
                  room = item.operand("slots").shape[0];
    if (found && found->room >= room) continue;
    const auto d = [](int64_t value) { return static_cast<double>(value); };
    found = {.room = room,
             .even = d(choices.elements()) * d(held) / d(experts),
             .divided = held < experts};
    found->most =
        found->divided ? std::max(1.0, d(room) / found->even) : d(experts) / d(choices[1]);
  }
  return found;
}

int64_t rows_at(const ExpertRows& rows, double load) {
  if (rows.padded) return rows.room;
  const double there = std::ceil((rows.divided ? load : 1) * rows.even);
  return there < static_cast<double>(rows.room) ? static_cast<int64_t>(there) : rows.room;
}

ExpertFill fill_at(const ExpertRows& rows, double load) {
  return {.rows = rows_at(rows, load), .fullest = rows.divided || rows.padded ? 1 : load};
}

bool is_expert_product(const WorkItem& item) {
  return item.kernel == "grouped_gemm" || item.kernel == "grouped_gradient";
}

StepWork filled(StepWork work, const ExpertFill& fill) {
  for (WorkItem& item : work.kernels) {
    if (fill.rows == 0 || !is_expert_product(item)) continue;
    const int64_t room = item.operands.front().shape[0];
    if (room <= fill.rows) continue;
    const double share = static_cast<double>(fill.rows) / static_cast<double>(room);
    item.cost.flops *= share;
    for (const char* name : {"a", "dy", "x"})  // `out` is always written completely
      if (const OperandForm* rows = item.find(name))
        item.cost.bytes -= (1 - share) * static_cast<double>(rows->bytes());
  }
  return work;
}

int64_t rows_before(const ExpertFill& fill, int64_t room, int64_t experts, int64_t all) {
  const int64_t rows = fill.rows > 0 ? std::min(fill.rows, room) : room;
  if (experts == 0 || all == 0) return 0;
  if (fill.fullest == 1 || all == 1) return rows * experts / all;
  const double first = fill.fullest * static_cast<double>(rows) / static_cast<double>(all);
  const int64_t of_first = std::min(rows, static_cast<int64_t>(std::ceil(first)));
  return of_first + (rows - of_first) * (experts - 1) / (all - 1);
}

}  // namespace megatron::plan
