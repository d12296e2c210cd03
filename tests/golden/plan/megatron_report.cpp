#include "golden/plan/megatron_report.h"

#include <fmt/core.h>

#include <cmath>
#include <iterator>

namespace megatron::plan {

std::string megatron_report(const MegatronShape& s, const MegatronLayout& l) {
  if (!s.hybrid_layer_pattern.empty())
    return "Theoretical memory footprints not yet supported for hybrid Mamba-Transformer models.\n";
  constexpr double kMega = 1024.0 * 1024.0;
  const MegatronMemory m = megatron_memory(s, l);
  const MegatronParameters& p = m.parameters;
  const bool parallel = l.shows_sequence_parallel(), piped = l.pipeline_model_parallel_size > 1;
  std::string text;
  const auto print = [&text](fmt::string_view format, const auto&... values) {
    fmt::vformat_to(std::back_inserter(text), format, fmt::make_format_args(values...));
    text += '\n';
  };
  const auto billions = [](auto parameters) { return static_cast<double>(parameters) / 1e9; };
  print("Number of parameters in transformer block in billions:  {:.2f}", billions(p.block));
  print("Number of active parameters in transformer block in billions:  {:.2f}",
        billions(p.active_block));
  if (s.prediction_layers() > 0)
    print("Number of parameters in mtp block in billions:  {:.2f}", billions(p.prediction));
  print("Number of parameters in embedding layers in billions: {:.2f}", billions(p.embedding));
  print("Total number of parameters in billions: {:.2f}", billions(p.total()));
  print("Total number of active parameters in billions: {:.2f}", billions(p.active()));
  print("Number of parameters in most loaded shard in billions: {:.4f}", billions(p.most_loaded));
  if (piped) print("Number of parameters in other shards in billions: {:.4f}", billions(p.other));
  print("compute_activation_memory{}", parallel ? " with SP" : "_without_sp");
  print("Activation memory footprint per transformer layer{}: {:.1f} MB",
        parallel ? "" : " (precise, without SP)",
        (parallel ? m.layer_sequence_parallel : m.layer) / kMega);
  if (l.virtual_pipeline_model_parallel_size)
    print("Memory penalty from interleaved schedule: {:.2f}", m.in_flight);
  if (piped)
    print("Number of in-flight microbatches: {}",
          std::ceil(m.in_flight * static_cast<double>(l.pipeline_model_parallel_size)));
  const double state = m.weights_and_optimizer / kMega,
               activations = (parallel ? m.activations_sequence_parallel : m.activations) / kMega;
  print(
      "Theoretical memory footprints: weight and optimizer={:.2f} MB, activation={:.2f} MB, "
      "total={:.2f} MB\n",
      state, activations, state + activations);
  return text;
}

}  // namespace megatron::plan
