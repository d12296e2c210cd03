#include "training/plan/suggestions.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <sstream>

#include "base/clock.h"
#include "base/error.h"
#include "parallel/schedule.h"
#include "plan/figures.h"
#include "plan/known_gpus.h"
#include "settings/rules.h"
#include "training/plan/meta_run.h"

namespace megatron::training {
namespace {

using settings::TrainSettings;

constexpr double kMaxSeconds = 20;  // for all plans of a run
constexpr int64_t kShortestSequence = 128;

// Shares of a rank's parameters, gradients and moments, which do not depend on batches: 16 bytes
// per parameter with Adam, in f32 and in bf16 alike.
constexpr double kHalfMoments = 0.75, kQuarterMoments = 0.625, kNoMoments = 0.5;

std::string joined(const std::string& flags, const std::string& more) {
  return flags + (flags.empty() || more.empty() ? "" : " ") + more;
}

// Returns the settings with flags such as "--bf16 --ranks 2" applied to them.
TrainSettings with(TrainSettings s, const std::string& flags) {
  Fields fields = s.fields();
  std::istringstream in(flags);
  Field* field = nullptr;
  std::vector<std::string> values;
  const auto assign = [&] {
    if (field != nullptr) field->set(values);
    values.clear();
  };
  for (std::string word; in >> word;) {
    if (!word.starts_with("--")) {
      values.push_back(word);
      continue;
    }
    assign();
    field = fields.find(word.substr(2));
    MG_ASSERT(field != nullptr);
  }
  assign();
  return s;
}

// Parts of layers that can be recomputed together, those that repeat the least work first: passes
// over norms and activations, attention, the first product of feed-forward blocks (of experts, all
// of them). The last takes the least memory. stops: passes stop within layers of experts, which
// cannot be recomputed as a whole then.
std::vector<std::string> recomputed_parts(const models::ModelFacts& model, bool stops) {
  const bool experts = model.experts.has_value(), dense = !experts || model.feed_forward;
  const auto of = [&](const char* of_dense, const char* of_experts) {
    return joined(dense ? of_dense : "", experts ? of_experts : "");
  };
  const std::string act = of("mlp_act", "moe_act"), all = of("mlp", stops ? "moe_act" : "moe");
  return {"layernorm",
          act,
          act + " layernorm",
          "core_attn " + act + " layernorm",
          all,
          all + " layernorm",
          "core_attn " + all + " layernorm"};
}

bool contains_all(const std::vector<std::string>& modules, const std::string& of) {
  std::istringstream in(of);
  for (std::string module; in >> module;)
    if (std::ranges::find(modules, module) == modules.end()) return false;
  return true;
}

// Bytes needed of the memory that decides: a GPU's, or this process's.
int64_t needed(const plan::Plan& p) { return p.gpu ? p.gpu_bytes() : p.process_bytes(); }

std::string text(int64_t bytes) { return plan::bytes_text(static_cast<double>(bytes)); }

// The vocabulary's share of all parameters.
double share_of_the_vocabulary(const plan::Plan& p) {
  int64_t count = 0;
  for (const plan::ParameterCount& part : p.parameters)
    if (part.group == "embedding" || part.group == "output") count += part.count;
  return static_cast<double>(count) /
         static_cast<double>(std::max<int64_t>(1, p.parameter_count()));
}

class Suggestions {
 public:
  Suggestions(const TrainSettings& s, const models::Model& model, const plan::Plan& plan,
              const PlanOf& plan_of)
      : s_(s), model_(model), plan_(plan), plan_of_(plan_of) {
    for (const plan::MemoryUse& stage : plan.stages) {
      int64_t bytes = 0;
      for (const MemoryClass c :
           {MemoryClass::parameters, MemoryClass::gradients, MemoryClass::optimizer})
        bytes += stage.arenas[static_cast<size_t>(c)];
      state_ = std::min(state_, bytes);
    }
  }

  std::vector<std::string> find() {
    divide_further();
    keep_the_result();
    const auto on_several = [](const std::string& one) {
      return one.find("--nproc-per-node") != one.npos;
    };
    if (!kept_.empty() && std::ranges::none_of(found_, on_several)) several_machines(kept_);
    const bool other = none();
    if (none()) either([this](const auto& flags, double share) { least_batch(flags, share); });
    if (none()) less_state();
    if (none())
      either([this](const auto& flags, double share) { shorter_sequences(flags, share); });
    if (other) smaller_model();
    constexpr int kRanksOfAMachine = 8;
    if (other || s_.runtime.ranks_here() > kRanksOfAMachine) gpus();
    return found_;
  }

 private:
  bool none() const { return found_.empty(); }
  // Bytes of the GPU's memory, or else the machine's.
  int64_t room() const { return plan_.gpu ? plan_.gpu->bytes : plan_.machine; }
  int64_t last_batch() const { return s_.batch.schedule.batch(last_stage(s_)); }

  // The model of changed settings: built from their flags if flags give the shape, otherwise the
  // run's model with what training changes in it.
  models::Model model_of(const TrainSettings& s) const {
    if (s.run.model || !s_.shape.num_layers)
      return model_->with({.router = s.shape.moe.training(), .mlp_chunks = s.recompute.mlp_chunks});
    models::ModelFlags flags = s.shape;
    flags.vocab_size = model_->vocab_size();
    if (s.shape.vocab_size && s_.shape.vocab_size)
      *flags.vocab_size += *s.shape.vocab_size - *s_.shape.vocab_size;
    return models::model_from_flags(flags, *s.batch.seq_length)
        ->with(
            {.low_precision = s.precision.low_precision(), .mlp_chunks = s.recompute.mlp_chunks});
  }

  // Plans the settings with a constant global batch: the last one of the run, or that of a flag.
  // Returns nullopt if flags or the model's sizes forbid it, or if the time for plans is over.
  std::optional<plan::Plan> planned(TrainSettings s) const {
    if (now_seconds() - began_ > kMaxSeconds) return std::nullopt;
    try {
      const models::Model model = model_of(s);
      s.optimizer.config.check();
      s.batch.schedule = data::BatchSchedule::constant(
          s.batch.global_batch_size == s_.batch.global_batch_size ? last_batch()
                                                                  : *s.batch.global_batch_size);
      s.batch.schedule.divide(*s.batch.micro_batch_size, s.data_parallel(), false);
      std::vector<SettingNote> notes;
      s.parallel.check(s.runtime.rank_count(), model->num_layers(),
                       s.batch.schedule.micro_batches(0), *s.batch.seq_length, notes);
      settings::check_rules(settings::RuleScope::memory, s);
      return plan_of_(s, model);
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  // Returns the plan with these flags if it fits. share: fraction of the ranks' present state that
  // remains at best.
  std::optional<plan::Plan> fitting(const std::string& flags, double share = 1) const {
    const TrainSettings s = with(s_, flags);
    const int64_t of_a_rank =
        (plan_.gpu ? plan_.gpu->bytes / plan_.gpu->ranks * s_.runtime.ranks_here()
                   : plan_.machine) /
        s.runtime.ranks_here();
    if (share * static_cast<double>(state_) > static_cast<double>(of_a_rank)) return std::nullopt;
    auto p = planned(s);
    return p && p->fits() ? p : std::nullopt;
  }
  // Suggests the flags if the run fits with them, and returns whether it does. other: the run has
  // another result.
  bool put(const std::string& flags, double share = 1, bool other = false) {
    const auto p = fitting(flags, share);
    if (p) suggest(flags, text(needed(*p)), other);
    return p.has_value();
  }
  // needs: "12 GB of each of 4 machines".
  void suggest(const std::string& flags, const std::string& needs, bool other = false) {
    found_.push_back(
        fmt::format("{} (needs {}{})", flags, needs, other ? "; changes the result" : ""));
  }

  // Suggests the same number of ranks, each of which holds less.
  void divide_further() {
    const settings::ParallelSettings& p = s_.parallel;
    const int replicas = s_.data_parallel();
    if (replicas % 2 == 0)
      put(fmt::format("--tensor-model-parallel-size {}", 2 * p.tensor_parallel), 0.5);
    for (int parts = 2; replicas % parts == 0; parts *= 2)
      if (put(fmt::format("--context-parallel-size {}", parts * p.context_parallel))) break;
    if (replicas == 1 || s_.optimizer.config.method == optim::Method::muon) return;
    if (p.sharding() == parallel::Sharding::none)
      put("--use-distributed-optimizer", 1.0 / replicas);
    if (p.sharding() != parallel::Sharding::parameters)
      put("--use-distributed-optimizer --data-parallel-sharding-strategy optim_grads_params",
          1.0 / replicas);
  }

  // Suggests several machines, each with as many of the ranks as fit.
  void several_machines(const std::string& flags) {
    if (!s_.runtime.launched_by.empty() || !plan_.fits_gpu()) return;
    TrainSettings s = with(s_, flags);
    for (int here = plan_.ranks_here - 1; here >= 1; --here) {
      if (plan_.ranks % here != 0 || (!plan_.gpu && state_ > plan_.machine / here)) continue;
      s.runtime.launched_here = here;
      const auto p = planned(s);
      if (!p || !p->fits()) continue;
      suggest(joined(flags, fmt::format("--nproc-per-node {}", here)),
              fmt::format("{} on each of {} machines like this", text(p->process_bytes()),
                          plan_.ranks / here));
      return;
    }
  }

  // Tries each change by itself, and all together if none is enough.
  void keep_the_result() {
    several_machines("");
    if (s_.data_parallel() > 1 && s_.runtime.launched_here == 0) {
      fewer_ranks_ = fmt::format(
          "--ranks {}", std::max(s_.parallel.model_ranks(),
                                 s_.parallel.expert_ranks() * s_.parallel.pipeline_parallel));
      put(fewer_ranks_);
    }
    int changes = fewer_ranks_.empty() ? 0 : 1;
    const auto give = [&](bool helps, const std::string& flags) {
      if (!helps) return;
      put(flags);
      kept_ = joined(kept_, flags);
      ++changes;
    };
    give(*s_.batch.micro_batch_size > 1, "--micro-batch-size 1");
    // Limits buffers of divided experts, if they are sized for any load, to twice an even load or
    // less: a step that needs more fails before it changes anything.
    const auto& rows = plan_.experts;
    const double load = rows && rows->most > 2 ? 2 : 1.5;
    give(rows && rows->divided && s_.shape.moe.capacity_factor.value_or(0) <= 0 &&
             !s_.shape.moe.rank_capacity_factor && rows->most > load,
         fmt::format("--moe-expert-rank-capacity-factor {:g}", load));
    if (s_.offload.num_layers == 0) recompute_parts();
    give(s_.offload.num_layers == 0 && !s_.recompute.any(),
         "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1");
    give(mlp_chunks(), "--mlp-chunks-for-training 16");
    give(s_.precision.type() == DType::f32, "--bf16");
    if (none() && changes > 1) put(together());
    if (s_.optimizer.config.method == optim::Method::adam &&
        !narrower_moments("bf16", DType::bf16, kHalfMoments, changes > 0))
      narrower_moments("fp8", DType::u8, kQuarterMoments, changes > 0);
  }

  // Suggests moments of the type, where they are wider, and returns whether the run fits with them.
  bool narrower_moments(const std::string& type, DType dtype, double share, bool has_changes) {
    const optim::OptimizerConfig& optimizer = s_.optimizer.config;
    std::string flags;
    if (size_of(optimizer.exp_avg_type) > size_of(dtype)) flags = "--exp-avg-dtype " + type;
    if (size_of(optimizer.exp_avg_sq_type) > size_of(dtype))
      flags = joined(flags, "--exp-avg-sq-dtype " + type);
    if (flags.empty()) return false;
    moments_ = flags;
    moments_share_ = share;
    return put(flags, share, true) ||
           (none() && has_changes && put(joined(together(), flags), share, true));
  }

  // All flags that keep the result, except the moments' types.
  std::string together() const { return joined(fewer_ranks_, kept_); }
  // Calls f without flags and, if nothing was found, with all flags that keep the result.
  template <class F>
  void either(F&& f) {
    f(std::string(), 1);
    const std::string all = joined(together(), moments_);
    if (none() && !all.empty()) f(all, moments_share_);
  }

  // Suggests the parts that repeat the least work among those with which the run fits.
  void recompute_parts() {
    if (s_.recompute.granularity == "full") return;
    const auto sets = recomputed_parts(
        model_->facts(), s_.parallel.overlap_experts && s_.parallel.expert_tokens_travel());
    const auto flags = [&](const std::string& parts) {
      return joined(
          s_.recompute.granularity == "selective" ? "" : "--recompute-granularity selective",
          "--recompute-modules " + parts);
    };
    if (!fitting(flags(sets.back()))) return;
    const std::vector<std::string> before = s_.recompute.options().modules;
    for (const std::string& parts : sets)
      if (!contains_all(before, parts) && put(flags(parts))) return;
  }

  // Suggests the fewest chunks with which the run fits. Returns true if none is enough, but more
  // chunks may help together with other changes.
  bool mlp_chunks() {
    const int64_t present = s_.recompute.mlp_chunks;
    const auto flag = [](int64_t n) { return fmt::format("--mlp-chunks-for-training {}", n); };
    constexpr int64_t kMost = 64;
    const bool quantizes = !s_.precision.low_precision_flag().empty();  // excludes chunks
    if (!model_->facts().feed_forward || present >= kMost || quantizes) return false;
    if (!fitting(flag(kMost))) return present < 16;
    for (int64_t n = 2; n <= kMost; n *= 2)
      if (n > present && put(flag(n))) return false;
    return false;
  }

  // Suggests the smallest global batch, which helps if prefetched batches take the memory.
  void least_batch(const std::string& flags, double share) {
    const TrainSettings s = with(s_, flags);
    const parallel::PipelineShape shape = s.parallel.pipeline(model_->num_layers());
    const int64_t together =
        shape.kind == parallel::ScheduleKind::interleaved ? std::max(shape.group, shape.stages) : 1;
    const int64_t least = *s.batch.micro_batch_size * s.data_parallel() * together;
    if (least < last_batch())
      put(joined(flags, fmt::format("--global-batch-size {}", least)), share, true);
  }

  // Lion's state is no smaller than Adam's with moments in bf16.
  void less_state() {
    if (s_.optimizer.config.method != optim::Method::adam) return;
    const std::string flags = "--optimizer sgd --sgd-momentum 0";
    if (!put(flags, kNoMoments, true) && !together().empty())
      put(joined(together(), flags), kNoMoments, true);
  }

  // Suggests the longest sequence length that fits: a half, a quarter and so on.
  void shorter_sequences(const std::string& flags, double share) {
    for (int64_t length = *s_.batch.seq_length / 2; none() && length >= kShortestSequence;
         length /= 2)
      put(joined(flags, fmt::format("--seq-length {}", length)), share, true);
  }

  // If flags give the shape, suggests a smaller vocabulary if that takes most of the memory,
  // otherwise the most layers that fit, and smaller matrices if fewer layers are not enough.
  void smaller_model() {
    const models::ModelFlags& shape = s_.shape;
    if (s_.run.model || !shape.num_layers || room() == 0) return;
    if (shape.vocab_size && share_of_the_vocabulary(plan_) > 0.5 &&
        largest("--vocab-size", 64, *shape.vocab_size))
      return;
    if (fewer_layers("") || !none()) return;
    const int64_t heads = *shape.num_attention_heads;
    for (int64_t hidden = model_->hidden_size() / 2; hidden >= 2 * heads && hidden % heads == 0;
         hidden /= 2) {
      const std::string flags = fmt::format("--hidden-size {}", hidden);
      if (put(flags, 0.25, true) || fewer_layers(flags)) return;
    }
  }
  bool fewer_layers(const std::string& flags) {
    const parallel::PipelineShape shape = s_.parallel.pipeline(model_->num_layers());
    return largest(joined(flags, "--num-layers"), shape.stages * std::max(1, shape.chunks),
                   model_->num_layers());
  }
  // Suggests the largest value of a size, in steps, below the run's own, estimated from the needs
  // of two small ones.
  bool largest(const std::string& flag, int64_t step, int64_t present) {
    const auto with_size = [&](int64_t size) { return fmt::format("{} {}", flag, size); };
    const auto of = [&](int64_t size) {
      const auto p = planned(with(s_, with_size(size)));
      return p ? needed(*p) : std::numeric_limits<int64_t>::max();
    };
    if (present <= step) return false;
    int64_t size = step, bytes = of(step);
    if (bytes > room()) return false;
    const int64_t two = of(2 * step);
    if (two <= room() && present > 2 * step) {
      const int64_t slope = std::max<int64_t>(1, (two - bytes) / step);
      size = std::min(present - step, step + (room() - bytes) / slope) / step * step;
      for (int attempt = 0; attempt < 4 && size > 2 * step; ++attempt) {
        bytes = of(size);
        if (bytes <= room()) break;
        size = (size - std::max(step, (bytes - room()) / slope + 1)) / step * step;
      }
      if (size <= 2 * step || bytes > room()) size = 2 * step, bytes = two;
    }
    suggest(with_size(size), text(bytes), true);
    return true;
  }

  // Suggests the unchanged run on GPUs of the kind that plans assume, or on the fewest of them that
  // hold it: tensor-parallel ranks of one machine first, then context-parallel ranks for long
  // sequences, then pipeline stages across machines.
  void gpus() {
    constexpr int64_t kOfAMachine = 8, kMaxStages = 64;
    constexpr double kBytes = 12;  // lower bound per parameter
    const settings::ParallelSettings& p = s_.parallel;
    const std::string device = joined(s_.runtime.device != "cuda" ? "--device cuda" : "",
                                      s_.precision.type() == DType::f32 ? "--bf16" : "");
    if (s_.runtime.device_kind() != DeviceKind::cuda && on_gpus(device, s_.runtime.rank_count()))
      return;
    int tries = 8;
    const auto put = [&](int64_t tensor, int64_t stages, int64_t context) {
      const int64_t ranks = tensor * stages * context;
      if (tries == 0 || kBytes * static_cast<double>(plan_.parameter_count()) >
                            static_cast<double>(ranks * plan::kPlannedGpuMemory))
        return false;
      --tries;
      const auto flag = [](bool given, const char* name, int64_t value) {
        return given ? fmt::format("--{} {}", name, value) : std::string();
      };
      std::string flags =
          joined(device, flag(p.tensor_parallel != tensor, "tensor-model-parallel-size", tensor));
      flags = joined(flags,
                     flag(p.pipeline_parallel != stages, "pipeline-model-parallel-size", stages));
      flags = joined(flags, flag(p.context_parallel != context, "context-parallel-size", context));
      return on_gpus(joined(flags, flag(s_.runtime.rank_count() != ranks && s_.data_parallel() > 1,
                                        "ranks", ranks)),
                     ranks);
    };
    const int64_t context = p.context_parallel;
    for (const int64_t tensor : {1, 2, 4, 8})
      if (put(tensor, 1, context)) return;
    // Activations of long sequences take more than all else: stages would not divide them.
    if (plan_.memory.arenas[static_cast<size_t>(MemoryClass::activations)] > state_)
      for (const int64_t more : {2, 8})
        if (put(kOfAMachine, 1, more * context)) return;
    for (int64_t stages = 2; stages <= kMaxStages; ++stages)
      if (model_->num_layers() % stages == 0 && put(kOfAMachine, stages, context)) return;
  }
  bool on_gpus(const std::string& flags, int64_t ranks) {
    constexpr int64_t kHostMemory = int64_t{1} << 40;  // assumed for a machine with eight such GPUs
    if (flags.empty()) return false;
    TrainSettings s = with(s_, flags);
    s.runtime.ranks = ranks;
    s.runtime.planned = true;
    s.runtime.launched_here = 0;
    s.runtime.launched_by.clear();
    s.runtime.plan_for_usual_hosts();
    const auto p = planned(s);
    if (!p || !p->gpu || p->gpu->ranks > 1 || !p->fits_gpu() ||
        p->process_bytes() > std::max(p->machine, kHostMemory))
      return false;
    suggest(flags,
            fmt::format(
                "{}{} {}{}", text(p->gpu_bytes()),
                p->ranks == 1 ? " of one" : fmt::format(" of each of {}", p->ranks), p->gpu->name,
                p->ranks > p->ranks_here ? fmt::format(", {} per machine", p->ranks_here) : ""));
    return true;
  }

  const TrainSettings& s_;
  const models::Model& model_;
  const plan::Plan& plan_;
  const PlanOf& plan_of_;
  const double began_ = now_seconds();
  // Bytes that a rank holds at least, whatever its batches.
  int64_t state_ = std::numeric_limits<int64_t>::max();
  // Flags that keep the result: those for the number of ranks, those for moments, and the others.
  std::string fewer_ranks_, moments_, kept_;
  double moments_share_ = 1;  // of the state that remains with moments_
  std::vector<std::string> found_;
};

}  // namespace

std::vector<std::string> find_suggestions(const TrainSettings& settled, const models::Model& model,
                                          const plan::Plan& plan, const PlanOf& plan_of) {
  std::vector<std::string> found = Suggestions(settled, model, plan, plan_of).find();
  if (found.empty())
    found.push_back("a smaller model, or more memory: none of the tested settings fits");
  return found;
}

}  // namespace megatron::training
