// One training step: forward and backward of every micro-batch by the pipeline's schedule,
// reduction over data-parallel ranks, gradient norm, clipping and update, which is skipped if a
// gradient is not finite. Shared by `train`, `bench step`, `verify` and `selftest`.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "optim/loss_scale.h"
#include "optim/optimizer.h"
#include "training/micro_batch_pass.h"
#include "training/module_states.h"

namespace megatron::training {

// Outcome of a step. Unless `updated`, the parameters and the optimizer are unchanged.
enum class StepOutcome {
  updated,
  overflow,    // fp16 gradients overflowed at this loss scale; the next may use a smaller one
  not_finite,  // NaN or infinity that a smaller loss scale cannot avoid
};
// Outcome of a step with this loss and norm of all gradients. scale: fp16's loss scale, else null.
StepOutcome step_outcome(double loss, double gradient_norm, const optim::LossScale* scale,
                         bool check_finite);

struct StepReport {
  double loss = 0;           // mean over all that counts in the step, without auxiliary losses
  double counted = 0;        // tokens that count, or what the objective counts, over all ranks
  double gradient_norm = 0;  // before clipping, with the loss scale divided out
  // The same of detached depths of prediction, which gradient_norm does not include.
  std::optional<double> detached_norm;
  double loss_scale = 1;                       // loss scale of this step
  StepOutcome outcome = StepOutcome::updated;  // the same on all ranks
  std::vector<MetricValue> metrics;  // metrics of the model over all ranks; empty without data
  report::StepTimes times;

  bool updated() const { return outcome == StepOutcome::updated; }
};

// The spans of chunks, in the order of forward.
std::vector<const Span*> spans_of(std::span<models::Stage* const> chunks);

class TrainStep final {
 public:
  // chunks: this rank's part of the model, one for each chunk of ranks.pipeline(). Their parameters
  // get their memory here and must be filled through shards() before begin(). All arguments are
  // borrowed.
  TrainStep(std::span<models::Stage* const> chunks, DType type, const parallel::Ranks& ranks,
            Runtime& runtime, const StepOptions& options);

  // Elements of parameters that this rank stores, over all chunks in the model's order; must be
  // filled once.
  std::span<const parallel::Shard> shards() const { return data_parallel_.shards(); }
  // States that modules have besides parameters; must be filled as well.
  std::span<nn::ModuleState* const> states() const { return states_.all(); }
  // Call after filling them: creates the optimizer, with master weights initialized from the
  // parameters. Collective.
  void begin(const optim::OptimizerConfig& optimizer);

  // micro_batches: those of this rank, in order; every rank has the same number. Collective.
  StepReport run(std::span<const corpus::HostBatch> micro_batches, const optim::StepInputs& inputs);
  // Runs only forward, backward and the reduction: undivided gradients are in the parameters' first
  // uses, and the divisor that run() would apply (tokens and loss scale) is returned in `divisor`.
  StepReport accumulate(std::span<const corpus::HostBatch> micro_batches, double& divisor);

  // Runs the matrix products of a step, so that they can be timed, and discards the results:
  // parameters, optimizer and loss scale are unchanged, and nothing is captured. Call after
  // begin(). Collective.
  void rehearse(std::span<const corpus::HostBatch> micro_batches);

  // For plans: the next steps have this many micro-batches, although run() is given fewer, which
  // represent all of them.
  void expect(int64_t micro_batches);

  // Sets the listener from the next step on, in place of the options' listener; null: none.
  // Borrowed. Returns the previous listener.
  StepListener* listen(StepListener* listener) { return pass_.listen(listener); }
  // The pipeline action in progress; nullopt before the first and after the last.
  const std::optional<parallel::Action>& action() const { return pass_.action(); }
  int micro_batch() const {
    return action() ? action()->micro_batch : -1;
  }  // of the action; -1: none
  // Numbers of micro-batches (with a pipeline: per chunk) captured and replayed so far. Nothing is
  // captured while the step has a listener or its stream is observed, or if ranks exchange
  // gradients or parameters during the micro-batch.
  RecordedCounts recorded() const { return pass_.recorded(); }
  // Bytes that micro-batches of pipelines hold outside the runtime's arenas, and their maximum,
  // whichever chunks occupy each slot.
  int64_t own_memory(MemoryClass memory_class) const { return pass_.own_memory(memory_class); }
  int64_t most_own_memory(MemoryClass memory_class) const {
    return pass_.most_own_memory(memory_class);
  }

  optim::Optimizer& optimizer() { return *optimizer_; }  // after begin()
  const optim::Optimizer& optimizer() const { return *optimizer_; }
  // Gathers parameters where they are needed; must also be called at the spans of other passes.
  parallel::DataParallel& data_parallel() { return data_parallel_; }
  std::span<models::Stage* const> chunks() const { return chunks_; }
  const parallel::Ranks& ranks() const { return ranks_; }
  const StepOptions& options() const { return options_; }
  WorkReporter& work_reporter() { return work_reporter_; }
  optim::LossScale& loss_scale() { return loss_scale_; }  // constant 1 if the options have none
  const optim::LossScale& loss_scale() const { return loss_scale_; }

 private:
  void forward_backward(std::span<const corpus::HostBatch> micro_batches, bool rehearses = false);
  void read_norms(StepReport& report);

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
  int64_t expected_ = 0;  // micro-batches per step; 0: as many as run() is given
};

// Sum of the losses of the counted tokens (of what an objective counts), and their number.
struct LossSum {
  double sum = 0, tokens = 0;
  // Sums over what the objective's metrics count, in their order.
  struct Metric {
    double sum = 0, weight = 0;
  };
  std::vector<Metric> metrics = {};

  LossSum& operator+=(const LossSum& other);
  double mean() const;  // throws Error if no token was counted
};

}  // namespace megatron::training
