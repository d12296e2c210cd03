// One rank's run on the meta device: its step, its evaluation and its samples, without computing
// any numbers.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "comm/group.h"
#include "corpus/batch.h"
#include "corpus/vocabulary.h"
#include "models/stage.h"
#include "plan/plan.h"
#include "plan/recorder.h"
#include "settings/settings.h"
#include "training/plan/arena_marks.h"
#include "training/plan/make_plan.h"
#include "training/reference_pass.h"
#include "training/trained_model.h"

namespace megatron::training {

// Steps of one batch size.
struct BatchPhase {
  int64_t micro_batches = 0;
  int64_t end = 0;  // their last iteration
};

// Number of samples before the last stage of the batch-size schedule that the run reaches.
int64_t last_stage(const settings::TrainSettings& settings);

// Runs the work of one rank until the arenas have reached their final sizes.
class MetaRun {
 public:
  // Settings, model and task (null for next tokens) must outlive this object. expert_load: the
  // rank's load relative to the mean, if its experts' buffers have only the rows that arrive; 0:
  // full buffers.
  MetaRun(const settings::TrainSettings& settings, const models::Model& model, int rank,
          const Task* task, double expert_load = 0);

  // consumed: samples before the run. with_samples: includes those of --sample-interval.
  void run(int64_t consumed, const corpus::Vocabulary& vocabulary, bool with_samples);

  // Seconds of a step of the run, excluding its kernels.
  double host_seconds();

  plan::MemoryUse memory();
  const plan::StepWork& work() const { return work_; }
  const parallel::Ranks& ranks() const { return trained_.ranks; }
  const Task* task() const { return task_; }
  // False if memory() was measured on other work, which represents the run's.
  bool exact() const { return exact_; }

 private:
  parallel::ShortSteps samples(int64_t all) const;
  void run_pipeline(const std::vector<BatchPhase>& phases, int64_t begin,
                    const std::function<void()>& expect_all, const std::function<void()>& write);
  bool evaluates();
  std::span<corpus::HostBatch> batches(int64_t count);
  void step(int64_t micro_batches);
  // The reference model's pass before a step.
  void reference_step(int64_t micro_batches);
  void precompute_once();
  double seconds_of_step(int64_t micro_batches);
  void evaluate_once();
  void norm_once();
  void sample_once(const tokenizers::Tokenizer& tokenizer);
  int64_t host_bytes(const plan::MemoryUse& use) const;

  const settings::TrainSettings& s_;
  const models::Model& model_;
  const Task* task_;
  plan::Recorder recorder_;
  std::unique_ptr<comm::Group> group_, observed_;
  Runtime runtime_;
  TrainedModel trained_;
  std::unique_ptr<ReferenceSource> reference_;  // of the task, if it runs before each step
  corpus::HostBatch batch_;
  std::vector<corpus::HostBatch> batches_;
  std::map<int64_t, plan::StepWork>
      works_,  // work of the last step, by its number of micro-batches
      reference_works_;
  plan::StepWork work_;
  std::optional<std::array<int64_t, kMemoryClasses>>
      marks_;  // high-water marks of the arenas of a pipeline rank
  bool exact_ = true;
};

}  // namespace megatron::training
