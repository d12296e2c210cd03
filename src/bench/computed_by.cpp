#include "bench/computed_by.h"

#include <fmt/core.h>

#include "device/cuda_library.h"

namespace megatron::bench {
namespace {

struct Computed {
  CallCounts calls;  // of the first step
  training::RecordedCounts recorded;
  std::string recompute, graphs, cudnn;  // cudnn: version of cuDNN
  bool cuda = false, deterministic = true;
};

std::string recompute_text(const settings::RecomputeSettings& s) {
  if (!s.any()) return "none";
  std::string text = s.granularity.value_or("selective");
  if (text == "selective")
    for (size_t i = 0; i < s.modules.size(); ++i) text += (i == 0 ? ": " : " ") + s.modules[i];
  if (s.method) text += fmt::format(" {} {}", *s.method, s.num_layers.value_or(1));
  return text;
}

Computed computed(const training::TrainResult& result) {
  const settings::TrainSettings& s = result.settings;
  Computed c{.recorded = result.recorded, .recompute = recompute_text(s.recompute)};
  if (!result.iterations.empty()) c.calls = result.iterations.front().calls;
  c.cuda = s.runtime.device_kind() == DeviceKind::cuda;
  c.graphs = c.cuda && s.graphs.record_after(s.parallel) ? "local" : "none";
  c.deterministic = !s.runtime.allow_nondeterministic;
  if (c.calls.attention_library > 0) c.cudnn = cuda_library("cuDNN").version;
  return c;
}

std::string attention_text(const Computed& c) {
  const int64_t library = c.calls.attention_library, own = c.calls.attention_own;
  if (library == 0) return fmt::format("this program's own kernels ({} calls)", own);
  return fmt::format("cuDNN{}{} ({} of {} calls)", c.cudnn.empty() ? "" : " " + c.cudnn,
                     c.deterministic ? "" : " nondeterministic", library, library + own);
}

}  // namespace

std::string computed_by(const training::TrainResult& result) {
  const Computed c = computed(result);
  const int64_t fused = c.calls.epilogues_fused, all = fused + c.calls.epilogues_separate;
  std::string text =
      c.cuda ? fmt::format("attention {}; epilogues fused {} of {}", attention_text(c), fused, all)
             : "this program's own kernels";
  text += fmt::format("; recompute {}", c.recompute);
  if (c.cuda) {
    text += "; CUDA graphs " + c.graphs;
    if (c.graphs != "none")
      text += fmt::format(" ({} captured, {} replayed)", c.recorded.recorded, c.recorded.replayed);
  }
  return text + (c.deterministic ? "; deterministic" : "; nondeterministic");
}

Json computed_by_json(const training::TrainResult& result) {
  const Computed c = computed(result);
  return Json::Object{{"attention", Json::Object{{"cudnn", c.calls.attention_library},
                                                 {"cudnn_version", c.cudnn},
                                                 {"own", c.calls.attention_own}}},
                      {"epilogues", Json::Object{{"fused", c.calls.epilogues_fused},
                                                 {"separate", c.calls.epilogues_separate}}},
                      {"recompute", c.recompute},
                      {"cuda_graphs", c.graphs},
                      {"graphs_recorded", c.recorded.recorded},
                      {"graphs_launched", c.recorded.replayed},
                      {"deterministic", c.deterministic}};
}

}  // namespace megatron::bench
