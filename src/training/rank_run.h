// A training run as one rank sees it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "corpus/prefetch.h"
#include "report/log/progress_file.h"
#include "report/log/run_log.h"
#include "report/log/timers.h"
#include "training/checkpointer.h"
#include "training/evaluate.h"
#include "training/gemm_choices.h"
#include "training/profile/profile.h"
#include "training/run_plan.h"
#include "training/trained_model.h"
#include "training/trainer.h"

namespace megatron::training {

class RankRun {
 public:
  // Makes the model and fills it. peak: FLOP/s of this machine, all threads. All are borrowed; the
  // plan's beginning is read here only.
  RankRun(const RunPlan& plan, double peak, comm::Group& world, const TrainHooks& hooks);

  // Trains to the end; collective. Rank 0 logs.
  TrainResult loop();

 private:
  bool lead() const { return world_.rank() == 0; }
  const FileSystem& files() const {
    return hooks_.files == nullptr ? system_files() : *hooks_.files;
  }
  void fill_model(const resume::Beginning& beginning);
  void load_weights(const resume::Beginning& beginning);
  void draw_new_tokens(const checkpoint::ModelDirectory& directory);
  void announce_saves() const;
  corpus::Prefetcher read_ahead() const;
  void tune_gemms(corpus::Prefetcher& data);
  void train_on(corpus::Prefetcher& data);
  std::optional<report::EndReason> finish_iteration(int64_t iteration);
  IterationReport one_step(int64_t iteration, corpus::Prefetcher& data);
  // What follows a step whose loss or gradients are not finite.
  void not_finite(const IterationReport& report);
  void warn_of_skipped(const IterationReport& report);
  void read_step(corpus::Prefetcher& data);  // into micro_batches_
  // Of --iterations-to-skip: the samples of the next step are read and passed over.
  void pass_over(corpus::Prefetcher& data);
  void run_hook(const IterationReport& report);
  void tell(const IterationReport& report);
  void take_times(const IterationReport& report);
  double flops(int64_t samples) const;  // of the model
  void begin_progress_file();
  void tell_progress(int64_t iteration);
  void finish_profile();
  void tell_recorded() const;
  void validate(int64_t iteration);
  void test(int64_t iteration);
  LossSum evaluate_set(const data::Dataset& set, int64_t first);
  void tell_evaluated(int64_t iteration, const std::string& set, const LossSum& sum);
  void write_samples(int64_t iteration);
  void save(int64_t iteration, bool last);
  void tell_saved(const std::vector<report::SaveRecord>& records);
  std::optional<report::EndReason> end_after(int64_t iteration);
  resume::TrainerState state(int64_t iteration);
  report::RunRecord run_record() const;
  report::RunTotals totals() const;
  void tell_totals() const;

  const RunPlan& plan_;
  double peak_;
  const settings::TrainSettings& s_;
  Profile profile_;
  comm::Group& world_;  // the profile's
  const TrainHooks& hooks_;
  double begin_;
  double loop_begin_ = 0;  // of the training loop: where its rates in all count from
  report::RunTotals totals_;
  Runtime runtime_;
  TrainedModel model_;
  std::optional<GemmChoices> gemm_choices_;
  comm::Group& group_;  // data-parallel
  std::optional<Checkpointer> checkpointer_;
  std::optional<Progress> progress_;                   // rank 0
  std::optional<report::RunLog> log_;                  // rank 0
  std::optional<report::ProgressFile> progress_file_;  // rank 0, with --log-progress
  std::map<int64_t, int64_t> saved_samples_;           // consumed, by iteration of a save under way
  report::Timers line_times_, point_times_;  // since the last log line, point of TensorBoard
  std::vector<report::TimerFigure> line_figures_,
      point_figures_;  // of this step, where it has them
  TrainResult result_;
  std::vector<corpus::HostBatch> micro_batches_;  // of the last step; keep their memory
  bool micro_batches_read_ = false;               // those of the next step already
  std::vector<int64_t> passed_over_;              // steps of --iterations-to-skip, ascending
  int64_t consumed_;                              // samples
  int64_t scheduled_;                             // those of steps that changed the weights
  int64_t skipped_;                               // steps that did not
  int64_t skipped_in_row_ = 0;                    // the last ones of this run
  double save_wait_ = 0;                          // seconds since the last step's end
  bool not_finite_reported_ = false;              // where it came from
};

}  // namespace megatron::training
