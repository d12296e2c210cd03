// Compares the ways in which context-parallel ranks can exchange tokens.
#include <fmt/core.h>

#include <algorithm>

#include "plan/figures.h"
#include "plan/grid.h"
#include "plan/page_sections.h"

namespace megatron::plan {

std::string context_section(const Plan& plan) {
  if (!plan.exchanges) return "";
  const ContextExchanges& exchanges = *plan.exchanges;
  const double passes =
      static_cast<double>(std::max<int64_t>(1, exchanges.layers) * plan.micro_batches);
  Grid grid({"Exchange of tokens (--cp-comm-type)", "per layer", "per step", "overlapped",
             "activations"});
  std::string refused;
  for (const ContextExchange& e : exchanges.all) {
    const bool own = exchanges.given == std::vector{e.name};
    if (!e.refused.empty()) {
      refused += fmt::format("  {}: {}\n", e.name, e.refused);
      continue;
    }
    grid.add({fmt::format("  {}{}", e.name, own ? " (this run)" : ""), bytes_text(e.sent / passes),
              bytes_text(e.sent), share_text(e.sent > 0 ? e.overlapped / e.sent : 0),
              bytes_text(static_cast<double>(e.activations))});
  }
  const ContextExchange* cheapest = exchanges.cheapest();
  return grid.text() + refused +
         (cheapest == nullptr
              ? ""
              : fmt::format("  Bytes sent, per layer of a micro-batch and per step; "
                            "{} sends the fewest\n",
                            cheapest->name));
}

}  // namespace megatron::plan
