#include "settings/graph_settings.h"

#include "base/error.h"

namespace megatron::settings {

void GraphSettings::fields(Fields& f) {
  f.begin_group("device");
  f.add(
      "cuda-graph-impl", &impl, {"none", "local", "transformer_engine", "full_iteration"},
      "local: on a GPU, forward and backward of a micro-batch are recorded and then launched as a "
      "whole, with the same bits; for one pipeline stage, and tensor-parallel ranks with a GPU "
      "each");
  f.add("cuda-graph-warmup-steps", &warmup_steps,
        "of --cuda-graph-impl local: steps before micro-batches are recorded");
  f.of({"cuda-graph-warmup-steps"},
       [this] { return impl == "none" ? "--cuda-graph-impl is none" : ""; });
}

void GraphSettings::check(DeviceKind device, const ParallelSettings& parallel, int data_parallel,
                          const OffloadSettings& offload, std::vector<SettingNote>& notes) const {
  MG_CHECK(warmup_steps >= 0 && warmup_steps <= 1'000'000'000,
           "--cuda-graph-warmup-steps is {}; it must lie in [0, 1e9]", warmup_steps);
  if (impl == "none") return;
  if (device != DeviceKind::cuda) {
    notes.push_back(
        {"cuda-graph-impl", "none", "the run computes on " + std::string(name(device))});
    return;
  }
  MG_CHECK(
      impl != "transformer_engine",
      "--cuda-graph-impl transformer_engine records layers of a library that this program does "
      "not have; use local, which records whole micro-batches");
  MG_CHECK(impl != "full_iteration",
           "--cuda-graph-impl full_iteration records the optimizer, too, whose learning rate and "
           "clipping change from step to step here; use local, which records whole micro-batches");
  const auto one = [](int64_t ranks, std::string_view flag) {
    MG_CHECK(
        ranks == 1,
        "--cuda-graph-impl local records forward and backward of a micro-batch as one, and with "
        "--{} {} ranks send messages between them; leave one of them out",
        flag, ranks);
  };
  one(parallel.pipeline_parallel, "pipeline-model-parallel-size");
  one(parallel.context_parallel, "context-parallel-size");
  MG_CHECK(data_parallel == 1 || parallel.sharding() < parallel::Sharding::gradients,
           "--cuda-graph-impl local needs gradients and parameters that stay where they are, and "
           "with --data-parallel-sharding-strategy {} they come and go in every micro-batch; use "
           "optim, or --cuda-graph-impl none",
           parallel::name(parallel.sharding()));
  MG_CHECK(offload.num_layers == 0,
           "--cuda-graph-impl local records the device's work only, and "
           "--cpu-offloading-num-layers {} moves activations to host memory; leave one of them out",
           offload.num_layers);
}

std::optional<int64_t> GraphSettings::record_after(const ParallelSettings& parallel) const {
  if (impl != "local" || parallel.model_ranks() > parallel.tensor_parallel) return std::nullopt;
  return warmup_steps;
}

}  // namespace megatron::settings
