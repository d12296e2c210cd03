#include "training/plan/suggestions.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "parallel/schedule.h"
#include "training/plan/suggest_sizes.h"
#include "training/plan/suggestion_trials.h"

namespace megatron::training {
namespace {

constexpr int64_t kShortestSequence = 128;

// Of what a rank holds in parameters, gradients and moments, whatever its batches: 16 bytes a
// parameter with Adam, in f32 and in bf16 alike.
constexpr double kHalfMoments = 0.75, kNoMoments = 0.5;

// Parts of layers that can be recomputed together, those that repeat the least work first: passes
// over norms and activations, attention, the first product of feed-forward blocks (of experts, all of them). The last
// takes the least memory. stops: passes stop within layers of experts, which cannot be recomputed as a whole then.
using Parts = std::vector<std::string>;
std::array<Parts, 7> recomputed_parts(const models::MoeFlags& moe, bool stops) {
  const bool experts = moe.num_experts.has_value(), dense = !experts || moe.layer_freq != "1";
  Parts act, all;
  if (dense) act = {"mlp_act"}, all = {"mlp"};
  if (experts) act.emplace_back("moe_act"), all.emplace_back(stops ? "moe_act" : "moe");
  const auto joined = [](Parts parts, const Parts& more) {
    parts.insert(parts.end(), more.begin(), more.end());
    return parts;
  };
  const Parts norm = {"layernorm"}, attention = {"core_attn"};
  return {{norm, act, joined(act, norm), joined(attention, joined(act, norm)), all,
           joined(all, norm), joined(attention, joined(all, norm))}};
}

bool contains_all(const Parts& modules, const Parts& of) {
  return std::ranges::all_of(of, [&](const std::string& module) {
    return std::ranges::find(modules, module) != modules.end();
  });
}

class Suggestions {
 public:
  explicit Suggestions(SuggestionTrials& trials)
      : trials_(trials), s_(trials.settings()), model_(trials.model()), all_(s_) {}

  void find() {
    divide_further();
    keep_the_result();
    keep_the_ranks();
    const bool other = trials_.none();
    if (trials_.none()) smaller_batch();
    if (trials_.none()) less_state();
    if (trials_.none()) shorter_sequences();
    if (other) suggest_smaller_model(trials_);
    constexpr int kRanksOfAMachine = 8;
    if (other || s_.runtime.ranks_here() > kRanksOfAMachine) suggest_gpus(trials_);
  }

 private:
  using Change = SuggestionTrials::Change;

  // The same ranks, which hold less each.
  void divide_further() {
    const int64_t replicas = s_.data_parallel();
    if (replicas % 2 == 0) {
      settings::TrainSettings s = s_;
      s.parallel.tensor_parallel *= 2;
      const std::string ranks =
          s_.runtime.ranks ? "" : fmt::format(" --ranks {}", s_.runtime.rank_count());
      put({fmt::format("--tensor-model-parallel-size {}{}", s.parallel.tensor_parallel, ranks),
           0.5},
          s);
    }
    if (replicas == 1 || s_.optimizer.config.method == optim::Method::muon) return;
    const double share = 1.0 / static_cast<double>(replicas);
    settings::TrainSettings s = s_;
    if (s_.parallel.sharding() == parallel::Sharding::none) {
      s.parallel.distributed_optimizer = true;
      put({"--use-distributed-optimizer", share}, s);
    }
    if (s_.parallel.sharding() == parallel::Sharding::parameters) return;
    s = s_;
    s.parallel.distributed_optimizer = true;
    s.parallel.sharding_strategy = "optim_grads_params";
    put({"--use-distributed-optimizer --data-parallel-sharding-strategy optim_grads_params", share},
        s);
  }

  // All changes together but for the number of ranks, on several machines, where those alone are
  // not enough.
  void keep_the_ranks() {
    const auto on_several = [](const std::string& flags) {
      return flags.find("--nproc-per-node") != flags.npos;
    };
    if (changes_ == 0 || std::ranges::any_of(trials_.found(), on_several)) return;
    settings::TrainSettings s = all_;
    s.runtime.ranks = s_.runtime.ranks;
    std::string flags = together_.flags + " ";
    if (all_.runtime.ranks != s_.runtime.ranks) {
      const std::string ranks = fmt::format("--ranks {} ", *all_.runtime.ranks);
      MG_ASSERT(flags.starts_with(ranks));
      flags.erase(0, ranks.size());
    }
    if (flags != " " && !flags.empty()) suggest_several_machines(trials_, flags, s);
  }

  // Each by itself; all together where none is enough.
  void keep_the_result() {
    suggest_several_machines(trials_, "", s_);
    if (s_.data_parallel() > 1 && s_.runtime.launched_here == 0) {
      const int64_t one = std::max(s_.parallel.model_ranks(),
                                   s_.parallel.expert_ranks() * s_.parallel.pipeline_parallel);
      give({fmt::format("--ranks {}", one)},
           [one](settings::TrainSettings& s) { s.runtime.ranks = one; });
    }
    if (*s_.batch.micro_batch_size > 1)
      give({"--micro-batch-size 1"},
           [](settings::TrainSettings& s) { s.batch.micro_batch_size = 1; });
    limit_expert_rows();
    if (s_.offload.num_layers == 0) recompute_parts();
    if (s_.offload.num_layers == 0 && !s_.recompute.any()) {
      give({"--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"},
           [](settings::TrainSettings& s) {
             s.recompute.granularity = "full";
             s.recompute.method = "uniform";
             s.recompute.num_layers = 1;
           });
    }
    if (s_.precision.type() == DType::f32)
      give({"--bf16"}, [](settings::TrainSettings& s) { s.precision.bf16 = true; });
    if (trials_.none() && changes_ > 1) put(together_, all_);
    settings::TrainSettings one = s_;
    const std::string moments = smaller_moments(one);
    if (moments.empty()) return;
    put({moments, kHalfMoments}, one);
    if (trials_.none() && changes_ > 0) {
      const auto [change, s] = with_moments();
      put(change, s);
    }
  }

  // Buffers of divided experts for twice an even load, or for less, where they are for any: a step
  // that needs more fails before it changes anything.
  void limit_expert_rows() {
    const auto& rows = trials_.plan().experts;
    if (!rows || !rows->divided || s_.shape.moe.capacity_factor.value_or(0) > 0 ||
        s_.shape.moe.rank_capacity_factor)
      return;
    const double load = rows->most > 2 ? 2 : 1.5;
    if (rows->most <= load) return;
    give({fmt::format("--moe-expert-rank-capacity-factor {:g}", load)},
         [load](settings::TrainSettings& s) { s.shape.moe.rank_capacity_factor = load; });
  }

  // The parts that repeat the least work of those with which the run fits.
  void recompute_parts() {
    if (s_.recompute.granularity == "full") return;
    const auto sets = recomputed_parts(
        model_->flags().moe, s_.parallel.overlap_experts && s_.parallel.expert_tokens_travel());
    if (!trials_.fits(with_parts(sets.back()))) return;
    const bool selective = s_.recompute.granularity == "selective";
    std::string flags = selective ? "" : "--recompute-granularity selective ";
    flags += "--recompute-modules";
    const Parts before = s_.recompute.options().modules;
    for (const Parts& parts : sets) {
      if (contains_all(before, parts)) continue;
      if (put({fmt::format("{} {}", flags, fmt::join(parts, " "))}, with_parts(parts))) return;
    }
  }
  settings::TrainSettings with_parts(const Parts& parts) const {
    settings::TrainSettings s = s_;
    s.recompute.granularity = "selective";
    s.recompute.modules = parts;
    return s;
  }

  // Puts Adam's moments in bf16. The flags; empty: there are none in f32.
  static std::string smaller_moments(settings::TrainSettings& s) {
    optim::OptimizerConfig& optimizer = s.optimizer.config;
    std::string flags;
    if (optimizer.method != optim::Method::adam) return flags;
    if (optimizer.exp_avg_type == DType::f32) flags = "--exp-avg-dtype bf16";
    if (optimizer.exp_avg_sq_type == DType::f32)
      flags += (flags.empty() ? "" : " ") + std::string("--exp-avg-sq-dtype bf16");
    optimizer.exp_avg_type = optimizer.exp_avg_sq_type = DType::bf16;
    return flags;
  }

  // Where it is the batches read ahead that take the memory.
  void smaller_batch() {
    put_least_batch({"", 1, true}, s_);
    const auto [all, s] = with_moments();
    if (trials_.none() && !all.flags.empty()) put_least_batch(all, s);
  }

  // Lion's would be no less than Adam's with moments in bf16.
  void less_state() {
    if (s_.optimizer.config.method != optim::Method::adam) return;
    const std::string flags = "--optimizer sgd --sgd-momentum 0";
    const auto sgd = [](settings::TrainSettings s) {
      s.optimizer.config.method = optim::Method::sgd;
      s.optimizer.config.sgd_momentum = 0;
      return s;
    };
    put({flags, kNoMoments, true}, sgd(s_));
    if (trials_.none() && changes_ > 0)
      put({joined(together_.flags, flags), std::min(kNoMoments, together_.share), true}, sgd(all_));
  }

  // The longest of a half, a quarter and so on that fits.
  void shorter_sequences() {
    const auto put_shorter = [this](const Change& change, const settings::TrainSettings& of) {
      for (int64_t length = *s_.batch.seq_length / 2; trials_.none() && length >= kShortestSequence;
           length /= 2) {
        settings::TrainSettings s = of;
        s.batch.seq_length = length;
        put({joined(change.flags, fmt::format("--seq-length {}", length)), change.share, true}, s);
      }
    };
    put_shorter({}, s_);
    const auto [all, s] = with_moments();
    if (!all.flags.empty()) put_shorter(all, s);
  }

  template <class F>
  void give(const Change& change, F&& apply) {
    settings::TrainSettings one = s_;
    apply(one);
    apply(all_);
    put(change, one);
    together_ = {joined(together_.flags, change.flags), together_.share * change.share};
    ++changes_;
  }

  static std::string joined(const std::string& flags, const std::string& more) {
    return flags + (flags.empty() || more.empty() ? "" : " ") + more;
  }

  // All changes that keep the result.
  std::pair<Change, settings::TrainSettings> with_moments() const {
    settings::TrainSettings s = all_;
    const std::string moments = smaller_moments(s);
    const double share = moments.empty() ? 1 : kHalfMoments;
    return {{joined(together_.flags, moments), std::min(share, together_.share)}, s};
  }

  bool put(const Change& change, const settings::TrainSettings& s) {
    return trials_.put(change, s);
  }

  void put_least_batch(Change change, settings::TrainSettings s) {
    const parallel::PipelineShape shape = s.parallel.pipeline(model_->num_layers());
    const int64_t together =
        shape.kind == parallel::ScheduleKind::interleaved ? std::max(shape.group, shape.stages) : 1;
    const int64_t least = *s.batch.micro_batch_size * s.data_parallel() * together;
    if (least >= trials_.last_batch()) return;
    change.flags = joined(change.flags, fmt::format("--global-batch-size {}", least));
    change.other = true;
    trials_.put(change, s, least);
  }

  SuggestionTrials& trials_;
  const settings::TrainSettings& s_;
  const models::Model& model_;
  settings::TrainSettings
      all_;          // with each change that keeps the result, but for the moments' types
  Change together_;  // the flags of all_
  int changes_ = 0;
};

}  // namespace

std::vector<std::string> find_suggestions(const settings::TrainSettings& settled,
                                          const models::Model& model, const plan::Plan& plan,
                                          const PlanOf& plan_of) {
  SuggestionTrials trials(settled, model, plan, plan_of);
  Suggestions(trials).find();
  std::vector<std::string> found = trials.found();
  if (found.empty())
    found.push_back("a smaller model, or more memory: none of the settings tried fits");
  return found;
}

}  // namespace megatron::training
