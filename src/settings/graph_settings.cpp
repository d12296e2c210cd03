#include "settings/graph_settings.h"

#include "base/error.h"

namespace megatron::settings {
namespace {

bool computes_weights_later(const ParallelSettings& parallel) {
  return parallel.schedule && parallel.schedule->starts_with("zb-");
}

}  // namespace

void GraphSettings::fields(Fields& f) {
  f.begin_group("device");
  f.add("cuda-graph-impl", &impl, {"none", "local", "transformer_engine", "full_iteration"},
        "local: on a GPU, capture forward and backward of a micro-batch in CUDA graphs and replay "
        "them, with bitwise identical results; for tensor-parallel and context-parallel ranks with "
        "one GPU each, and the pipeline schedules 1f1b and interleaved");
  f.add("cuda-graph-warmup-steps", &warmup_steps,
        "with --cuda-graph-impl local: steps before micro-batches are captured")
      .of([this] { return impl == "none" ? "--cuda-graph-impl is none" : ""; });
}

void GraphSettings::check(DeviceKind device, std::vector<SettingNote>& notes) const {
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
      "--cuda-graph-impl transformer_engine captures layers of a library that this program does "
      "not use; use local, which captures whole micro-batches");
  MG_CHECK(impl != "full_iteration",
           "--cuda-graph-impl full_iteration also captures the optimizer, whose learning rate "
           "and clipping change from step to step here; use local, which captures whole "
           "micro-batches");
}

std::optional<int64_t> GraphSettings::record_after(const ParallelSettings& parallel) const {
  if (impl != "local" || computes_weights_later(parallel)) return std::nullopt;
  return warmup_steps;
}

}  // namespace megatron::settings
