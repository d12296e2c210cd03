// Plans the resources of a training run, by running its own step and its evaluation on the meta
// device.
#pragma once

#include <string>

#include "corpus/vocabulary.h"
#include "models/stage.h"
#include "plan/kept_rates.h"
#include "plan/measured_calls.h"
#include "plan/plan.h"
#include "plan/recorder.h"
#include "settings/settings.h"
#include "training/task.h"
#include "training/trained_model.h"

namespace megatron::training {

struct PlanOptions {
  std::shared_ptr<const Task> task;  // of --task
  // Also estimate the time of a step, which takes a second or more; skipped for a run that does not
  // fit.
  bool time = false;
  bool samples = true;     // include the needs of --sample-interval
  bool exchanges = false;  // compare all ways to exchange tokens of context-parallel ranks
  // Memory of a GPU in GiB; default: that of this machine's smallest GPU or, without any, of the
  // GPU that is planned for (plan/known_gpus.h).
  std::optional<double> device_memory;
  plan::RateKeeping rates;  // storage of the machine's measured rates, used to estimate the time
  // Load of the fullest expert-parallel rank over the mean (of the fullest expert if there is one
  // rank), at least 1 and finite. A model with experts is planned at this load and at the worst
  // load. Without a value only the worst load is planned, in which buffers are full.
  std::optional<double> expert_skew;
  // True if set by --moe-skew; a model without experts is then an error.
  bool skew_given = false;
  std::optional<double> expert_load;  // plans this load alone instead of full buffers
  std::string recipe;  // value of --recipe, whose name includes its GPU; "": not given
  plan::MeasuredCalls* measured =
      nullptr;  // measured kernel times, shared by plans that are compared
};

// Returns the options of a run's steps. task: null for next tokens.
StepOptions step_options(const settings::TrainSettings& settings, const models::Model& model,
                         const Task* task);
// Returns how the run's model is divided among its ranks.
ModelLayout model_layout(const settings::TrainSettings& settings, const models::Model& model);

// FLOPs of a run for one sequence: plan::executed_flops() if parameters are frozen, else
// ModelDefinition::training_flops().
double sequence_flops(const settings::TrainSettings& settings, const models::Model& model);

// Plans a run with finalized settings and a known model; what depends on device memory is chosen
// here. consumed: samples before the run. Fills in parameters, flops, memory, kernels, traffic,
// machine and, on request, the step's time. Memory, kernels and traffic are those of rank 0, which
// holds as much as any rank of its pipeline stage; `stages` has the memory of one rank of each
// stage.
plan::Plan make_plan(settings::TrainSettings& settled, const models::Model& model,
                     const corpus::Vocabulary& vocabulary, const PlanOptions& options,
                     int64_t consumed = 0);

// Plans a command line: finalizes and checks it as `train` does, but opens no data and no
// checkpoint, and needs neither --lr nor --train-iters. If a tokenizer's files are missing, its
// type gives the number of tokens (noted in Plan::derived). Throws Error naming the flag.
plan::Plan make_plan(const settings::TrainSettings& given, const PlanOptions& options);

// Returns the kernel calls and collectives of a step of the run, at the largest of its batch sizes.
// task: null for next tokens.
plan::StepWork step_work(const settings::TrainSettings& settled, const models::Model& model,
                         const Task* task);

// Throws Error if the run does not fit the machine, with flags that would help and the memory
// needed with them.
void require_memory(const plan::Plan& plan);

}  // namespace megatron::training
