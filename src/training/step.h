// One training step: forward and backward of every micro-batch by the schedule, reduction over
// data-parallel ranks, gradient norm, clipping and update. `train`, `bench step`, `verify` and
// `selftest` all run this one.
#pragma once

#include <memory>
#include <span>

#include "comm/group.h"
#include "models/stage.h"
#include "optim/optimizer.h"
#include "parallel/gradient_buffer.h"
#include "training/batch.h"

namespace megatron::training {

struct StepOptions {
  LossScope loss_scope = LossScope::token;
  bool recompute = false;                 // keep only the segments' inputs
  int64_t vocabulary = 0, positions = 0;  // limits of what a batch may hold
  parallel::GradientBufferOptions buffer;
  const kernels::Table* table = nullptr;  // of forward and backward; default: the device's
  SpanListener* spans = nullptr;          // told of every span of forward and backward
};

struct StepReport {
  double loss = 0;           // sum over all counted tokens of the step / their number
  double tokens = 0;         // counted tokens of all ranks
  double gradient_norm = 0;  // before clipping
};

class TrainStep {
 public:
  // data_parallel: ranks that hold the same model and see different samples. All are borrowed.
  TrainStep(models::Stage& stage, DType type, const optim::OptimizerConfig& optimizer,
            comm::Group& data_parallel, Runtime& runtime, const StepOptions& options);

  // micro_batches: this rank's, in order; every rank has as many. Collective.
  StepReport run(std::span<const HostBatch> micro_batches, double learning_rate,
                 double weight_decay);
  // Only forward and backward and the reduction: gradients (divided by nothing) lie in the
  // parameters' first uses, and the divisor that step() would apply is returned through it.
  StepReport accumulate(std::span<const HostBatch> micro_batches, double& divisor);

  optim::Optimizer& optimizer() { return optimizer_; }
  const optim::Optimizer& optimizer() const { return optimizer_; }

 private:
  // A micro-batch between its forward and its backward.
  struct InFlight {
    DeviceBatch batch;
    std::unique_ptr<Tape> tape;
  };
  void forward(InFlight& slot, const HostBatch& host, int micro_batch);
  void forward_backward(std::span<const HostBatch> micro_batches);

  models::Stage& stage_;
  comm::Group& data_parallel_;
  Runtime& runtime_;
  StepOptions options_;
  parallel::GradientBuffer gradients_;
  optim::Optimizer optimizer_;
  DType type_;
  std::vector<InFlight> in_flight_;
  Tensor totals_;  // f64: loss sum of each micro-batch, then the counted tokens
};

// Sum of the losses of the counted tokens, and their number.
struct LossSum {
  double sum = 0, tokens = 0;
  double mean() const;  // throws Error when no token was counted
};

}  // namespace megatron::training
