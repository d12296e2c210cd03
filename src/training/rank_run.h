// The training run of one rank.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "training/checkpointer.h"
#include "training/evaluate.h"
#include "training/gemm_choices.h"
#include "training/profile/profile.h"
#include "training/reference_pass.h"
#include "training/run_reporter.h"
#include "training/step_feed.h"

namespace megatron::training {

class RankRun {
 public:
  // Creates the model and fills it. peak: FLOP/s of this machine, all threads. All arguments are
  // borrowed; the plan's beginning is only read here.
  RankRun(const RunPlan& plan, double peak, comm::Group& world, const TrainHooks& hooks);

  // Trains to the end; collective. Rank 0 logs.
  TrainResult loop();

 private:
  bool lead() const { return world_.rank() == 0; }
  const FileSystem& files() const {
    return hooks_.files == nullptr ? system_files() : *hooks_.files;
  }
  void make_reference();
  void fill_model(const resume::StartingPoint& start);
  void load_weights(const resume::StartingPoint& start);
  void draw_new_tokens(const checkpoint::ModelDirectory& directory);
  void draw_new_head(const checkpoint::ModelDirectory& directory, std::vector<std::string>& absent);
  void draw_new_adapter(std::vector<std::string>& absent);
  void tune_gemms(StepFeed& feed);
  void leave_low_precision(int64_t iteration);  // if --fp4-switch-to-bf16-at says so
  void train_on(StepFeed& feed);
  std::optional<report::EndReason> finish_iteration(int64_t iteration);
  IterationReport one_step(int64_t iteration, StepFeed& feed);
  // Handles a step whose loss or gradients are not finite.
  void not_finite(const IterationReport& report, std::span<const corpus::HostBatch> micro_batches);
  void warn_of_skipped(const IterationReport& report);
  std::span<corpus::HostBatch> read_step(StepFeed& feed);
  void complete(std::span<corpus::HostBatch> micro_batches);
  void run_hook(const IterationReport& report);
  void finish_profile();
  void tell_recorded() const;
  void validate(int64_t iteration);
  void test(int64_t iteration);
  LossSum evaluate_set(const data::Dataset& set, int64_t first);
  void write_samples(int64_t iteration);
  void save(int64_t iteration, bool last);
  void take_saved(const std::vector<report::SaveRecord>& records);
  std::optional<report::EndReason> end_after(int64_t iteration);
  resume::TrainerState state(int64_t iteration);

  const RunPlan& plan_;
  const settings::TrainSettings& s_;
  Profile profile_;
  comm::Group& world_;  // the profile's
  const TrainHooks& hooks_;
  double begin_;
  Runtime runtime_;
  TrainedModel model_;
  std::optional<models::HighPrecision> high_precision_;  // from --fp4-switch-to-bf16-at on
  std::unique_ptr<ReferenceSource> reference_;           // null: the objective reads none
  std::optional<GemmChoices> gemm_choices_;
  comm::Group& replicas_;
  std::optional<Checkpointer> checkpointer_;
  RunCounts counts_;
  RunReporter reporter_;
  TrainResult result_;
  std::vector<int64_t> passed_over_;  // steps of --iterations-to-skip, ascending
  bool not_finite_reported_ =
      false;  // the first NaN or infinity was searched for; done once per run
};

}  // namespace megatron::training
