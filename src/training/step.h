// One training step: forward and backward of every micro-batch by the schedule, reduction over
// data-parallel ranks, gradient norm, clipping and update, which is left out where a gradient is
// not finite. `train`, `bench step`, `verify` and `selftest` all run this one.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "comm/group.h"
#include "models/stage.h"
#include "optim/optimizer.h"
#include "parallel/gradient_buffer.h"
#include "training/batch.h"
#include "training/loss_scale.h"

namespace megatron::training {

struct StepOptions {
  LossScope loss_scope = LossScope::token;
  bool recompute = false;                 // keep only the segments' inputs
  int64_t vocabulary = 0, positions = 0;  // limits of what a batch may hold
  bool check_finite = true;               // no update where the loss or a gradient is not finite
  // With a scale (fp16), gradients that are not finite are an overflow of it, check_finite or not.
  std::optional<LossScaleSettings> loss_scale;
  parallel::GradientBufferOptions buffer;
  const kernels::Table* table = nullptr;  // of forward and backward; default: the device's
  SpanListener* spans = nullptr;          // told of every span of forward and backward
};

// What became of a step. Unless `updated`, it left the parameters and the optimizer as they were.
enum class StepOutcome {
  updated,
  overflow,  // of fp16 gradients at this loss scale: all in order, the next step is made with another
  not_finite,  // the loss, or a gradient that the loss scale cannot help
};

struct StepReport {
  double loss = 0;           // sum over all counted tokens of the step / their number
  double tokens = 0;         // counted tokens of all ranks
  double gradient_norm = 0;  // before clipping; without the loss scale
  double loss_scale = 1;     // that the step was made with
  StepOutcome outcome = StepOutcome::updated;  // the same on all ranks

  bool updated() const { return outcome == StepOutcome::updated; }
};

// Parts of a step, one after another.
enum class StepPart { forward_backward, norm, update };
std::string_view name(StepPart part);  // "forward and backward", "gradient norm", "update"

// Told of the spans of a step's forward and backward, and of its parts.
class StepListener : public SpanListener {
 public:
  virtual void began(StepPart) {}
  virtual void ended(StepPart) {}
};

class TrainStep {
 public:
  // data_parallel: ranks that hold the same model and see different samples. All are borrowed.
  TrainStep(models::Stage& stage, DType type, const optim::OptimizerConfig& optimizer,
            comm::Group& data_parallel, Runtime& runtime, const StepOptions& options);

  // micro_batches: this rank's, in order; every rank has as many. Collective.
  StepReport run(std::span<const HostBatch> micro_batches, const optim::StepInputs& inputs);
  // Only forward and backward and the reduction: gradients (divided by nothing) lie in the
  // parameters' first uses, and the divisor that run() would apply (tokens and loss scale) is
  // returned through it.
  StepReport accumulate(std::span<const HostBatch> micro_batches, double& divisor);

  // For plans: the next steps are of so many micro-batches, although run() is given fewer, which
  // stand for all.
  void expect(int64_t micro_batches);

  // Who is told from the next step on, beside the options' listener; null: nobody. Borrowed. Gives
  // who was before.
  StepListener* listen(StepListener* listener);
  int micro_batch() const { return micro_batch_; }  // that is in forward or backward; -1: none

  optim::Optimizer& optimizer() { return optimizer_; }
  const optim::Optimizer& optimizer() const { return optimizer_; }
  LossScale& loss_scale() { return loss_scale_; }  // constant 1 where the options have none
  const LossScale& loss_scale() const { return loss_scale_; }

 private:
  // A micro-batch between its forward and its backward.
  struct InFlight {
    DeviceBatch batch;
    std::unique_ptr<Tape> tape;
  };
  void forward(InFlight& slot, const HostBatch& host, int micro_batch);
  void forward_backward(std::span<const HostBatch> micro_batches);
  void make_totals(int64_t micro_batches);
  StepOutcome outcome(double loss, double gradient_norm) const;

  models::Stage& stage_;
  comm::Group& data_parallel_;
  Runtime& runtime_;
  StepOptions options_;
  parallel::GradientBuffer gradients_;
  optim::Optimizer optimizer_;
  LossScale loss_scale_;
  DType type_;
  std::vector<InFlight> in_flight_;
  StepListener* listener_ = nullptr;
  int micro_batch_ = -1;
  int64_t expected_ = 0;  // micro-batches; 0: those that are given
  Tensor totals_;         // f64: loss sum of each micro-batch, then the counted tokens
};

// Sum of the losses of the counted tokens, and their number.
struct LossSum {
  double sum = 0, tokens = 0;
  double mean() const;  // throws Error when no token was counted
};

}  // namespace megatron::training
