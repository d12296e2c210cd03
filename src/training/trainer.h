// The training loop.
#pragma once

#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "base/signal_watch.h"
#include "comm/processes.h"
#include "device/call_counts.h"
#include "models/stage.h"
#include "settings/settings.h"
#include "tokenizers/tokenizer.h"
#include "training/plan/make_plan.h"
#include "training/step.h"
#include "training/task.h"

namespace megatron::training {

struct IterationReport {
  int64_t iteration = 0;  // 1 after the first step
  int64_t batch = 0;      // global batch size of this step
  int64_t consumed = 0;   // samples of all steps up to this one
  double loss = 0, gradient_norm = 0, learning_rate = 0, weight_decay = 0;
  double parameter_norm = 0;    // with --log-params-norm
  int64_t zero_gradients = -1;  // with --log-num-zeros-in-grad, for logged steps; -1: not counted
  double loss_scale = 0;        // loss scale of fp16; 0: the loss is not scaled
  StepOutcome outcome = StepOutcome::updated;
  std::vector<MetricValue> metrics;  // metrics of the model in this step
  double seconds = 0;
  // Parts of `seconds` that rank 0 waited for data and spent in collectives.
  double data_wait = 0, communication_wait = 0;
  report::StepTimes times;  // with --timing-log-level, of rank 0
  CallCounts calls;         // of rank 0, in this step
};

struct TrainResult {
  models::Model model;                      // the trained model's definition
  settings::TrainSettings settings;         // with defaults filled in
  int64_t first_iteration = 0;              // steps done before this run
  std::vector<IterationReport> iterations;  // one per step of this run
  double validation_loss = 0;  // of the last evaluation (last of its sets); 0: none was run
  std::string saved;           // model directory; "" when nothing was saved
  RecordedCounts recorded;     // CUDA graphs
  report::EndReason end = report::EndReason::done;
  int signal = 0;  // signal that ended the run; 0: none
};

struct TrainHooks {
  std::function<void(const IterationReport&)> after_step;  // on rank 0
  std::shared_ptr<const Task> task;                        // of --task; null: next tokens
  // Converts the model described by the settings to the one to train; default: unchanged.
  std::function<models::Model(const models::Model&)> composed;
  // FLOP/s of this machine's matrix products with all threads of the run; default: the value stored
  // by `rates`, or measured before step 0.
  std::optional<double> peak;
  plan::RateKeeping rates = plan::user_rates(false);
  std::FILE* lines = stdout;          // where step and evaluation lines are printed
  SignalWatch* signals = nullptr;     // with --exit-signal-handler
  const FileSystem* files = nullptr;  // file system for checkpoints; null: the system's
};

// Runs all ranks, from checked settings to the last checkpoint: as threads of this process or, if
// `processes` were launched together, one in each. All user input is checked before the first step.
// Prints progress and log lines. Returns rank 0's result.
TrainResult train(const settings::TrainSettings& settings, const TrainHooks& hooks = {},
                  comm::Processes* processes = nullptr);

}  // namespace megatron::training
