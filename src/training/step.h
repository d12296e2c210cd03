// One training step: forward and backward of every micro-batch by the pipeline's schedule,
// reduction over data-parallel ranks, gradient norm, clipping and update, which is left out where a
// gradient is not finite. `train`, `bench step`, `verify` and `selftest` all run this one.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "optim/loss_scale.h"
#include "optim/optimizer.h"
#include "training/micro_batch_pass.h"
#include "training/module_states.h"

namespace megatron::training {

// What became of a step. Unless `updated`, it left the parameters and the optimizer as they were.
enum class StepOutcome {
  updated,
  overflow,  // of fp16 gradients at this loss scale: all in order, the next step is made with another
  not_finite,  // the loss, or a gradient that the loss scale cannot help
};
// Of a step with this loss and this norm of the gradients. scale: of fp16, else null.
StepOutcome step_outcome(double loss, double gradient_norm, const optim::LossScale* scale,
                         bool check_finite);

struct StepReport {
  double loss = 0;           // sum over all counted tokens of the step / their number; without
                             // auxiliary losses
  double tokens = 0;         // counted tokens of all ranks
  double gradient_norm = 0;  // before clipping; without the loss scale
  double loss_scale = 1;     // that the step was made with
  StepOutcome outcome = StepOutcome::updated;  // the same on all ranks
  std::vector<MetricValue> metrics;            // the model's, of all ranks; without data: none
  report::StepTimes times;

  bool updated() const { return outcome == StepOutcome::updated; }
};

class TrainStep final {
 public:
  // chunks: what this rank holds of the model, one for each of ranks.pipeline()'s chunks; their
  // parameters get their memory here and are to be filled through shards(), before begin(). All are
  // borrowed.
  TrainStep(std::span<models::Stage* const> chunks, DType type, const parallel::Ranks& ranks,
            Runtime& runtime, const StepOptions& options);

  // Elements of parameters that this rank keeps, of all chunks in the model's order; to be filled
  // once.
  std::span<const parallel::Shard> shards() const { return data_parallel_.shards(); }
  // Those that modules have besides parameters; to be filled, too.
  std::span<nn::ModuleState* const> states() const { return states_.all(); }
  // After that: the optimizer, whose master weights begin as the values. Collective.
  void begin(const optim::OptimizerConfig& optimizer);

  // micro_batches: this rank's, in order; every rank has as many. Collective.
  StepReport run(std::span<const corpus::HostBatch> micro_batches, const optim::StepInputs& inputs);
  // Only forward and backward and the reduction: gradients (divided by nothing) lie in the
  // parameters' first uses, and the divisor that run() would apply (tokens and loss scale) is
  // returned through it.
  StepReport accumulate(std::span<const corpus::HostBatch> micro_batches, double& divisor);

  // Makes the products of a step, so that they can be timed, and drops the results: parameters,
  // optimizer and loss scale stay, and nothing is recorded. After begin(). Collective.
  void rehearse(std::span<const corpus::HostBatch> micro_batches);

  // For plans: the next steps are of so many micro-batches, although run() is given fewer, which
  // stand for all.
  void expect(int64_t micro_batches);

  // Listens from the next step on, as the options' listener does; null: nobody. Borrowed. Gives
  // who was before.
  StepListener* listen(StepListener* listener) { return pass_.listen(listener); }
  // Of the pipeline's schedule, that is being made; none where all are over, or none has begun.
  const std::optional<parallel::Action>& action() const { return pass_.action(); }
  int micro_batch() const { return action() ? action()->micro_batch : -1; }  // of it; -1: none
  // Micro-batches (of a pipeline: of each chunk) that were recorded and replayed so far; none while
  // somebody listens to the step or watches its stream, or where ranks are to exchange gradients or
  // parameters meanwhile.
  RecordedCounts recorded() const { return pass_.recorded(); }
  // Bytes that micro-batches of pipelines have apart from the runtime's arenas; and at most,
  // whatever chunks come to each place.
  int64_t own_memory(MemoryClass memory_class) const { return pass_.own_memory(memory_class); }
  int64_t most_own_memory(MemoryClass memory_class) const {
    return pass_.most_own_memory(memory_class);
  }

  optim::Optimizer& optimizer() { return *optimizer_; }  // after begin()
  const optim::Optimizer& optimizer() const { return *optimizer_; }
  // Who brings parameters where they are needed: to be called at the spans of other passes, too.
  parallel::DataParallel& data_parallel() { return data_parallel_; }
  std::span<models::Stage* const> chunks() const { return chunks_; }
  const parallel::Ranks& ranks() const { return ranks_; }
  const StepOptions& options() const { return options_; }
  WorkReporter& work_reporter() { return work_reporter_; }
  optim::LossScale& loss_scale() { return loss_scale_; }  // constant 1 where the options have none
  const optim::LossScale& loss_scale() const { return loss_scale_; }

 private:
  void forward_backward(std::span<const corpus::HostBatch> micro_batches, bool rehearses = false);

  std::vector<models::Stage*> chunks_;
  const parallel::Ranks& ranks_;
  parallel::TensorParallel tensor_;
  WorkReporter work_reporter_;
  Runtime& runtime_;
  StepOptions options_;
  parallel::DataParallel data_parallel_;
  parallel::Pipeline pipeline_;
  StepTotals totals_;
  ModuleStates states_;
  std::optional<optim::Optimizer> optimizer_;
  optim::LossScale loss_scale_;
  StepTimer timer_;
  MicroBatchPass pass_;
  int64_t expected_ = 0;  // micro-batches; 0: those that are given
};

// Sum of the losses of the counted tokens, and their number.
struct LossSum {
  double sum = 0, tokens = 0;
  double mean() const;  // throws Error when no token was counted
};

}  // namespace megatron::training
