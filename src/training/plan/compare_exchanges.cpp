#include "training/plan/compare_exchanges.h"

#include <algorithm>

#include "base/error.h"
#include "training/plan/meta_run.h"

namespace megatron::training {
namespace {

// Names of the calls with which parallel/context_attention.h exchanges tokens.
constexpr std::string_view kCalls = "context, ";

plan::ContextExchange measured(const std::string& name, const settings::TrainSettings& settings,
                               const models::Model& model, const Task* task) {
  plan::ContextExchange exchange{.name = name};
  settings::TrainSettings s = settings;
  s.parallel.context_exchange = {name};
  try {
    MetaRun run(s, model, 0, task);
    run.run(0, {}, false);
    for (const plan::CollectiveItem& item : run.work().collectives) {
      if (!item.call.starts_with(kCalls)) continue;
      const double sent = static_cast<double>(item.calls) * item.sent();
      exchange.calls += item.calls;
      exchange.sent += sent;
      if (item.overlaps) exchange.overlapped += sent;
    }
    const plan::MemoryUse memory = run.memory();
    for (const MemoryClass c : {MemoryClass::activations, MemoryClass::communication})
      exchange.activations += memory.arenas[static_cast<size_t>(c)];
  } catch (const Error& error) {
    exchange.refused = error.what();
  }
  return exchange;
}

}  // namespace

std::optional<plan::ContextExchanges> compare_exchanges(const settings::TrainSettings& s,
                                                        const models::Model& model,
                                                        const Task* task) {
  if (s.parallel.context_parallel == 1) return std::nullopt;
  plan::ContextExchanges exchanges{.given = s.parallel.context_exchange};
  if (exchanges.given.empty()) exchanges.given = {"p2p"};
  std::vector<std::string> names = {"p2p", "all_gather", "a2a"};
  for (const std::string& given : exchanges.given)
    if (std::ranges::find(names, given) == names.end()) names.push_back(given);
  for (const std::string& name : names) exchanges.all.push_back(measured(name, s, model, task));
  const parallel::PipelineShape shape = s.parallel.pipeline(model->num_layers());
  const std::vector<parallel::ModelPart> parts =
      parallel::place_layers(model->num_layers(), shape, s.parallel.placement());
  for (int chunk = 0; chunk < shape.chunks; ++chunk)
    exchanges.layers += parts[static_cast<size_t>(shape.virtual_stage(0, chunk))].layers;
  return exchanges;
}

}  // namespace megatron::training
