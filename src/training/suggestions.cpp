#include "training/suggestions.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/machine_memory.h"
#include "base/progress.h"
#include "parallel/schedule.h"
#include "training/meta_run.h"

namespace megatron::training {
namespace {

constexpr int64_t kShortestSequence = 128;

// Of what a rank holds in parameters, gradients and moments, whatever its batches: 16 bytes a
// parameter with Adam, in f32 and in bf16 alike.
constexpr double kHalfMoments = 0.75, kNoMoments = 0.5;

class Suggestions {
 public:
  Suggestions(const TrainSettings& s, const models::GptConfig& config, const plan::Plan& plan,
           const PlanOf& plan_of)
      : s_(s), config_(config), plan_of_(plan_of), all_(s) {
    share_of_a_rank_ =
        plan.gpu ? plan.gpu->bytes / plan.gpu->ranks : machine_memory() / s.runtime.ranks_here();
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
    if (found_.empty()) smaller_batch();
    if (found_.empty()) less_state();
    if (found_.empty()) shorter_sequences();
    if (found_.empty())
      found_.push_back(fmt::format("a smaller model (--num-layers {}, --hidden-size {})",
                                   config_.num_layers, config_.hidden_size));
    return found_;
  }

 private:
  struct Change {
    std::string flags;
    double share = 1;    // of the state that ranks hold as it is: what remains of it at best
    bool other = false;  // the run has another result
  };

  // The same ranks, which hold less each.
  void divide_further() {
    const int64_t replicas = s_.data_parallel();
    if (replicas % 2 == 0) {
      TrainSettings s = s_;
      s.parallel.tensor_parallel *= 2;
      const std::string ranks =
          s_.runtime.ranks ? "" : fmt::format(" --ranks {}", s_.runtime.rank_count());
      put({fmt::format("--tensor-model-parallel-size {}{}", s.parallel.tensor_parallel, ranks),
           0.5},
          s);
    }
    if (replicas == 1 || s_.optimizer.config.method == optim::Method::muon) return;
    const double share = 1.0 / static_cast<double>(replicas);
    TrainSettings s = s_;
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

  // Each by itself; all together where none is enough.
  void keep_the_result() {
    if (s_.data_parallel() > 1 && s_.runtime.launched_here == 0) {
      const int64_t one = s_.parallel.model_ranks();
      give({fmt::format("--ranks {}", one)}, [one](TrainSettings& s) { s.runtime.ranks = one; });
    }
    if (*s_.batch.micro_batch_size > 1)
      give({"--micro-batch-size 1"}, [](TrainSettings& s) { s.batch.micro_batch_size = 1; });
    if (!s_.recompute.any()) {
      TrainSettings one = s_;
      one.recompute.activations = true;
      put({"--recompute-activations"}, one);
      give({"--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"},
           [](TrainSettings& s) {
             s.recompute.granularity = "full";
             s.recompute.method = "uniform";
             s.recompute.num_layers = 1;
           });
    }
    if (s_.precision.type() == DType::f32)
      give({"--bf16"}, [](TrainSettings& s) { s.precision.bf16 = true; });
    if (found_.empty() && changes_ > 1) put(together_, all_);
    TrainSettings one = s_;
    const std::string moments = smaller_moments(one);
    if (moments.empty()) return;
    put({moments, kHalfMoments}, one);
    if (found_.empty() && changes_ > 0) {
      const auto [change, s] = with_moments();
      put(change, s);
    }
  }

  // Puts Adam's moments in bf16. The flags; empty: there are none in f32.
  static std::string smaller_moments(TrainSettings& s) {
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
    if (found_.empty() && !all.flags.empty()) put_least_batch(all, s);
  }

  // Lion's would be no less than Adam's with moments in bf16.
  void less_state() {
    if (s_.optimizer.config.method != optim::Method::adam) return;
    const std::string flags = "--optimizer sgd --sgd-momentum 0";
    const auto sgd = [](TrainSettings s) {
      s.optimizer.config.method = optim::Method::sgd;
      s.optimizer.config.sgd_momentum = 0;
      return s;
    };
    put({flags, kNoMoments, true}, sgd(s_));
    if (found_.empty() && changes_ > 0)
      put({joined(together_.flags, flags), std::min(kNoMoments, together_.share), true}, sgd(all_));
  }

  // The longest of a half, a quarter and so on that fits.
  void shorter_sequences() {
    const auto put_shorter = [this](const Change& change, const TrainSettings& of) {
      for (int64_t length = *s_.batch.seq_length / 2; found_.empty() && length >= kShortestSequence;
           length /= 2) {
        TrainSettings s = of;
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
    TrainSettings one = s_;
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
  std::pair<Change, TrainSettings> with_moments() const {
    TrainSettings s = all_;
    const std::string moments = smaller_moments(s);
    const double share = moments.empty() ? 1 : kHalfMoments;
    return {{joined(together_.flags, moments), std::min(share, together_.share)}, s};
  }

  // With the steps that the run has at its end.
  void put(const Change& change, TrainSettings s) {
    put(change, s, s_.batch.schedule.batch(last_stage(s_)));
  }

  void put_least_batch(Change change, TrainSettings s) {
    const parallel::PipelineShape shape = s.parallel.pipeline(config_.num_layers);
    const int64_t together =
        shape.kind == parallel::ScheduleKind::interleaved ? std::max(shape.group, shape.stages) : 1;
    const int64_t least = *s.batch.micro_batch_size * s.data_parallel() * together;
    if (least >= s_.batch.schedule.batch(last_stage(s_))) return;
    change.flags = joined(change.flags, fmt::format("--global-batch-size {}", least));
    change.other = true;
    put(change, s, least);
  }

  // The model with the positions that it has without --max-position-embeddings.
  models::GptConfig config_of(const TrainSettings& s) const {
    models::GptConfig config = config_;
    const bool follows = !s.shape.max_position_embeddings && !s.run.model &&
                         config.max_position_embeddings == *s_.batch.seq_length;
    if (follows) config.max_position_embeddings = *s.batch.seq_length;
    return config;
  }

  void put(const Change& change, TrainSettings& s, int64_t batch) {
    const double state = change.share * static_cast<double>(state_);
    const double of_a_rank =
        static_cast<double>(share_of_a_rank_) * s_.runtime.ranks_here() / s.runtime.ranks_here();
    if (state > of_a_rank) return;
    try {
      s.optimizer.config.check();
      s.batch.schedule = data::BatchSchedule::constant(batch);
      s.batch.schedule.divide(*s.batch.micro_batch_size, s.data_parallel(), false);
      std::vector<SettingNote> notes;
      s.parallel.check(s.runtime.rank_count(), config_.num_layers,
                       s.batch.schedule.micro_batches(0), *s.batch.seq_length, notes);
      const plan::Plan p = plan_of_(s, config_of(s));
      if (!p.fits()) return;
      const int64_t bytes = p.gpu ? p.gpu_bytes() : p.process_bytes();
      found_.push_back(fmt::format("{} (needs {}{})", change.flags,
                                   format_bytes(static_cast<double>(bytes)),
                                   change.other ? "; gives another result" : ""));
    } catch (const Error&) {  // other flags, or the model's sizes, forbid these
    }
  }

  const TrainSettings& s_;
  const models::GptConfig& config_;
  const PlanOf& plan_of_;
  int64_t share_of_a_rank_ = 0;  // bytes that there are
  // Bytes that a rank holds at least, whatever its batches.
  int64_t state_ = std::numeric_limits<int64_t>::max();
  TrainSettings all_;  // with each change that keeps the result, but for the moments' types
  Change together_;    // the flags of all_
  int changes_ = 0;
  std::vector<std::string> found_;
};

}  // namespace

std::vector<std::string> find_suggestions(const TrainSettings& settled,
                                       const models::GptConfig& config, const plan::Plan& plan,
                                       const PlanOf& plan_of) {
  return Suggestions(settled, config, plan, plan_of).find();
}

}  // namespace megatron::training
