#include "training/plan/suggest_sizes.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "plan/figures.h"
#include "plan/known_gpus.h"

namespace megatron::training {
namespace {

using Trials = SuggestionTrials;

// Of the machine's memory, or the GPU's.
int64_t room(const plan::Plan& p) { return p.gpu ? p.gpu->bytes : p.machine; }

std::string text(int64_t bytes) { return plan::bytes_text(static_cast<double>(bytes)); }

}  // namespace

void suggest_several_machines(Trials& trials, const std::string& flags, settings::TrainSettings s) {
  const plan::Plan& p = trials.plan();
  if (!s.runtime.launched_by.empty() || !p.fits_gpu() || p.ranks_here == 1) return;
  s.runtime.launched_here = 1;
  auto found = trials.tried(s, trials.model_of(s), trials.last_batch());
  if (!found || !found->fits()) return;
  const int64_t program = found->program;  // each process has its own
  for (int here = p.ranks_here - 1; here >= 1; --here) {
    if (p.ranks % here != 0) continue;
    found->ranks_here = here;
    found->program = here * program;
    if (!found->fits()) continue;
    s.runtime.launched_here = here;
    found = trials.tried(s, trials.model_of(s), trials.last_batch());
    if (!found || !found->fits()) return;
    trials.suggest(fmt::format("{}--nproc-per-node {}", flags, here),
                   fmt::format("{} on each of {} machines like this", text(found->process_bytes()),
                               p.ranks / here),
                   false);
    return;
  }
}

namespace {

class Gpus {
 public:
  explicit Gpus(Trials& trials) : trials_(trials) {}

  void suggest() {
    if (trials_.settings().runtime.device_kind() != DeviceKind::cuda && put_as_it_is()) return;
    constexpr int64_t kMostStages = 64;
    constexpr size_t kMostTried = 6;
    std::vector<std::pair<int64_t, int64_t>> sizes;  // tensor, pipeline
    for (const int64_t tensor : {1, 2, 4, 8})
      if (hopeful(tensor)) sizes.emplace_back(tensor, 1);
    for (int64_t stages = 2; stages <= kMostStages; ++stages)
      if (trials_.model()->num_layers() % stages == 0 && hopeful(kOfAMachine * stages))
        sizes.emplace_back(kOfAMachine, stages);
    if (sizes.size() > kMostTried) sizes.resize(kMostTried);
    for (const auto& [tensor, stages] : sizes)
      if (put(tensor, stages)) return;
  }

 private:
  static constexpr int64_t kOfAMachine = 8;
  static constexpr int64_t kHostMemory = int64_t{1} << 40;  // of a machine with eight such GPUs

  bool hopeful(int64_t gpus) const {
    constexpr double kBytes = 12;  // of a parameter, at least
    const auto all = static_cast<double>(trials_.plan().parameter_count());
    return kBytes * all <= static_cast<double>(gpus * plan::kPlannedGpuMemory);
  }

  // The settings on GPUs, and the flags that say so.
  std::pair<settings::TrainSettings, std::string> on_gpus() const {
    settings::TrainSettings s = trials_.settings();
    std::string flags;
    if (s.runtime.device != "cuda") flags = "--device cuda";
    s.runtime.device = "cuda";
    if (s.precision.type() == DType::f32)
      flags += (flags.empty() ? "" : " ") + std::string("--bf16");
    if (s.precision.type() == DType::f32) s.precision.bf16 = true;
    s.runtime.planned = true;
    s.runtime.launched_here = 0;
    s.runtime.launched_by.clear();
    return {s, flags};
  }

  // With all its ranks.
  bool put_as_it_is() {
    const auto [s, flags] = on_gpus();
    return put(s, flags);
  }

  bool put(int64_t tensor, int64_t stages) {
    auto [s, flags] = on_gpus();
    const settings::TrainSettings& before = trials_.settings();
    const auto give = [&flags](const std::string& flag) {
      flags += (flags.empty() ? "" : " ") + flag;
    };
    if (s.parallel.tensor_parallel != tensor)
      give(fmt::format("--tensor-model-parallel-size {}", tensor));
    if (s.parallel.pipeline_parallel != stages)
      give(fmt::format("--pipeline-model-parallel-size {}", stages));
    s.parallel.tensor_parallel = tensor;
    s.parallel.pipeline_parallel = stages;
    s.runtime.ranks = tensor * stages;
    if (before.runtime.rank_count() != tensor * stages && before.data_parallel() > 1)
      give(fmt::format("--ranks {}", tensor * stages));
    return put(s, flags);
  }

  bool put(settings::TrainSettings s, const std::string& flags) {
    if (flags.empty()) return false;
    s.runtime.plan_for_usual_hosts();
    const auto p = trials_.tried(s, trials_.model(), trials_.last_batch());
    if (!p || !p->gpu || p->gpu->ranks > 1 || !p->fits_gpu()) return false;
    if (p->process_bytes() > std::max(p->machine, kHostMemory)) return false;
    const std::string of_each = p->ranks == 1 ? " of one" : fmt::format(" of each of {}", p->ranks);
    trials_.suggest(
        flags,
        fmt::format(
            "{}{} {}{}", text(p->gpu_bytes()), of_each, p->gpu->name,
            p->ranks > p->ranks_here ? fmt::format(", {} on a machine", p->ranks_here) : ""),
        false);
    return true;
  }

  Trials& trials_;
};

// The largest value of a size, in steps, below the run's own, by what two small ones need.
class LargestSize {
 public:
  using Set = std::function<void(settings::TrainSettings&, int64_t)>;
  LargestSize(Trials& trials, Set set) : trials_(trials), set_(std::move(set)) {}

  bool suggest(const std::string& flag, int64_t step, int64_t present) {
    const auto one = needed(step), two = needed(2 * step);
    if (present <= step || !one || *one > most_) return false;
    if (!two || *two > most_ || present <= 2 * step) return put(flag, step, *one);
    const int64_t slope = std::max<int64_t>(1, (*two - *one) / step);
    int64_t size = std::min(present - step, step + (most_ - *one) / slope) / step * step;
    for (int attempt = 0; attempt < 4 && size > 2 * step; ++attempt) {
      const auto bytes = needed(size);
      if (!bytes) break;
      if (*bytes <= most_) return put(flag, size, *bytes);
      size = (size - std::max(step, (*bytes - most_) / slope + 1)) / step * step;
    }
    return put(flag, 2 * step, *two);
  }

 private:
  std::optional<int64_t> needed(int64_t size) const {
    settings::TrainSettings s = trials_.settings();
    set_(s, size);
    try {
      const auto p = trials_.tried(s, trials_.model_of(s), trials_.last_batch());
      return p ? std::optional(Trials::needed(*p)) : std::nullopt;
    } catch (const Error&) {  // of the model's sizes
      return std::nullopt;
    }
  }
  bool put(const std::string& flag, int64_t size, int64_t bytes) {
    trials_.suggest(fmt::format("{} {}", flag, size), text(bytes), true);
    return true;
  }

  Trials& trials_;
  Set set_;
  int64_t most_ = room(trials_.plan());
};

bool suggest_fewer_layers(Trials& trials, const std::string& flags = "", int64_t hidden = 0) {
  const parallel::PipelineShape shape =
      trials.settings().parallel.pipeline(trials.model()->num_layers());
  const int64_t step = shape.stages * std::max(1, shape.chunks);
  const auto set = [hidden](settings::TrainSettings& s, int64_t layers) {
    s.shape.num_layers = layers;
    if (hidden > 0) s.shape.hidden_size = hidden;
  };
  return LargestSize(trials, set)
      .suggest(flags + "--num-layers", step, trials.model()->num_layers());
}

void suggest_smaller_matrices(Trials& trials) {
  const int64_t heads = *trials.settings().shape.num_attention_heads;
  for (int64_t hidden = trials.model()->hidden_size() / 2; hidden >= 2 * heads; hidden /= 2) {
    if (hidden % heads != 0) return;
    settings::TrainSettings s = trials.settings();
    s.shape.hidden_size = hidden;
    const std::string flags = fmt::format("--hidden-size {}", hidden);
    if (trials.put({flags, 0.25, true}, s)) return;
    if (suggest_fewer_layers(trials, flags + " ", hidden)) return;
  }
}

// Of all parameters.
double share_of_the_vocabulary(const plan::Plan& p) {
  int64_t count = 0;
  for (const plan::ParameterCount& part : p.parameters)
    if (part.group == "embedding" || part.group == "output") count += part.count;
  return static_cast<double>(count) /
         static_cast<double>(std::max<int64_t>(1, p.parameter_count()));
}

}  // namespace

void suggest_gpus(Trials& trials) { Gpus(trials).suggest(); }

void suggest_smaller_model(Trials& trials) {
  const settings::TrainSettings& s = trials.settings();
  if (s.run.model || !s.shape.num_layers || room(trials.plan()) == 0) return;
  if (s.shape.vocab_size && share_of_the_vocabulary(trials.plan()) > 0.5) {
    constexpr int64_t kStep = 64;
    const auto set = [](settings::TrainSettings& t, int64_t tokens) {
      t.shape.vocab_size = tokens;
    };
    if (LargestSize(trials, set).suggest("--vocab-size", kStep, *s.shape.vocab_size)) return;
  }
  if (!suggest_fewer_layers(trials) && trials.none()) suggest_smaller_matrices(trials);
}

}  // namespace megatron::training
