// What a training run will need: its own step, and its evaluation, run on the meta device.
#pragma once

#include <string>

#include "corpus/vocabulary.h"
#include "models/stage.h"
#include "plan/kept_rates.h"
#include "plan/measured_calls.h"
#include "plan/plan.h"
#include "plan/recorder.h"
#include "settings/settings.h"
#include "training/trained_model.h"

namespace megatron::training {

struct PlanOptions {
  // Estimate the time of a step, which takes a second or more; not of a run that does not fit.
  bool time = false;
  bool samples = true;  // with what --sample-interval needs
  // GiB that a GPU has; else those of this machine's smallest GPU, or without any those of the one
  // that is planned for (plan/known_gpus.h).
  std::optional<double> device_memory;
  plan::RateKeeping rates;  // of the machine's rates, which the estimate of the time takes
  // Load of the fullest expert-parallel rank over the mean (of the fullest expert if there is one
  // rank), at least 1 and finite. A model with experts is planned at this load and at the worst
  // load. Without a value only the worst load is planned, in which buffers are full.
  std::optional<double> expert_skew;
  // Given by --moe-skew; a model without experts is then an error.
  bool skew_given = false;
  std::optional<double> expert_load;  // plans this load alone instead of full buffers
  std::string recipe;  // value of --recipe, whose name has the GPU that it is for; or empty
  plan::MeasuredCalls* measured = nullptr;  // of plans that are compared
};

// The options that the steps of a run have.
StepOptions step_options(const settings::TrainSettings& settings, const models::Model& model);
// How they are divided.
ModelLayout model_layout(const settings::TrainSettings& settings, const models::Model& model);

// Of a run whose settings are settled and whose shape is known; what they leave to the device's
// memory (training/plan/attention_workspace.h) is chosen here. consumed: samples before it.
// parameters, flops, memory, kernels, traffic, machine and, where asked for, the step's time are
// filled in; memory, kernels and traffic are those of rank 0, which holds as much as any other of
// its pipeline stage; `stages` has the memory of a rank of each.
plan::Plan make_plan(settings::TrainSettings& settled, const models::Model& model,
                     const corpus::Vocabulary& vocabulary, const PlanOptions& options,
                     int64_t consumed = 0);

// Of a command line: settles and checks it as `train` does, but opens no data and no checkpoint,
// and needs no --lr and no --train-iters. Where a tokenizer's files are not here, its type gives
// the number of tokens (a note in Plan::derived says so). Throws Error naming the flag.
plan::Plan make_plan(const settings::TrainSettings& given, const PlanOptions& options);

// The kernel calls and collectives of a step of such a run, in the largest of its batch sizes.
plan::StepWork step_work(const settings::TrainSettings& settled, const models::Model& model);

// Throws Error when the machine cannot hold the run, with the flags that would help and what it
// would need then.
void require_memory(const plan::Plan& plan);

}  // namespace megatron::training
