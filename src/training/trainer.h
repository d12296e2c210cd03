// The training loop.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "training/settings.h"

namespace megatron::training {

struct IterationReport {
  int64_t iteration = 0;  // 1 after the first step
  int64_t batch = 0;      // global batch size of this step
  int64_t consumed = 0;   // samples of all steps up to this one
  double loss = 0, gradient_norm = 0, learning_rate = 0, seconds = 0;
  double data_wait = 0;  // seconds of them that rank 0 waited for data
};

struct TrainResult {
  models::GptConfig config;  // as trained
  TrainSettings settings;    // with defaults filled in
  std::vector<IterationReport> iterations;
  double validation_loss = 0;  // of the last evaluation (the last of its sets); 0: there was none
  std::string saved;           // model directory; "" when nothing was saved
};

struct TrainHooks {
  std::function<void(const IterationReport&)> after_step;  // on rank 0
};

// Runs all ranks as threads of this process, from checked settings to the last checkpoint.
// Everything a user can get wrong is checked before the first step. Prints progress and log lines.
TrainResult train(const TrainSettings& settings, const TrainHooks& hooks = {});

}  // namespace megatron::training
