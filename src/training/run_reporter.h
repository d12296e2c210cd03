// Progress output of a training run: on the console, in its log and in the file of --log-progress.
// Rank 0 writes; the other ranks take part where figures are combined over all ranks.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "report/log/progress_file.h"
#include "report/log/run_log.h"
#include "report/log/timers.h"
#include "training/run_plan.h"
#include "training/trained_model.h"
#include "training/trainer.h"

namespace megatron::training {

// Progress of a run in samples and steps.
struct RunCounts {
  int64_t consumed = 0;        // samples of all steps
  int64_t scheduled = 0;       // samples of steps that updated the weights
  int64_t skipped = 0;         // steps that did not update the weights
  int64_t skipped_in_row = 0;  // consecutive skipped steps up to now in this run

  static RunCounts of(const resume::TrainerState& state) {
    return {state.consumed_samples, state.scheduled_samples, state.skipped_steps};
  }
  // Call after a step of `samples` samples.
  void add_step(int64_t samples, bool updated) {
    consumed += samples;
    if (updated) scheduled += samples;
    else ++skipped;
    skipped_in_row = updated ? 0 : skipped_in_row + 1;
  }
};

class RunReporter {
 public:
  // peak: FLOP/s of this machine, all threads. begin: start of the run on the steady clock. All
  // arguments are borrowed.
  RunReporter(const RunPlan& plan, double peak, double begin, const RunCounts& counts,
              const TrainedModel& model, comm::Group& world);

  bool tells() const { return world_.rank() == 0; }
  // Call before the first step; space is absent without a checkpointer.
  void announce_saves(const std::optional<resume::SaveSpace>& space) const;
  void open(std::FILE* lines);
  // Collective if the step has a log line or a TensorBoard point.
  void step(const IterationReport& report);
  void warn(int64_t iteration, const std::string& text);
  // metrics: names of the sum's (LossPass::metrics()).
  void evaluated(int64_t iteration, const std::string& set, const LossSum& sum,
                 std::span<const std::string> metrics);
  void sample(const report::SampleRecord& sample) { log_->sample(sample); }
  void save_begins(int64_t iteration);
  // Returns the path of the last save, or "" if there is none.
  std::string saved(const std::vector<report::SaveRecord>& records);
  void save_took(double seconds);
  void evaluation_took(double seconds) { totals_.evaluation_seconds += seconds; }
  // error: message of a run that failed.
  void end(int64_t last, report::EndReason reason, const std::string& error = "");

 private:
  report::RunRecord run_record() const;
  report::RunTotals totals() const;
  report::StepRecord record_of(const IterationReport& report);
  int64_t tokens_per_sample() const;    // with those of an encoder's text
  double flops(int64_t samples) const;  // model FLOPs of this many samples
  void take_times(const IterationReport& report);
  void open_progress_file();
  void tell_progress(int64_t iteration);

  const RunPlan& plan_;
  const settings::TrainSettings& s_;
  double peak_;
  double sequence_flops_;  // of a step, for each of its sequences
  const RunCounts& counts_;
  const TrainedModel& model_;
  comm::Group& world_;
  double begin_,
      loop_begin_;  // start of the run and of the training loop, from which rates are computed
  report::RunTotals totals_;
  std::optional<Progress> progress_;
  std::optional<report::RunLog> log_;
  std::optional<report::ProgressFile> progress_file_;  // with --log-progress
  std::map<int64_t, int64_t> saved_samples_;  // consumed samples by iteration, for saves in flight
  report::Timers line_times_,
      point_times_;  // since the last log line and the last TensorBoard point
  std::vector<report::TimerFigure> line_figures_,
      point_figures_;     // figures of this step, if it has a line or a point
  double save_wait_ = 0;  // seconds waited for saves since the end of the last step
};

}  // namespace megatron::training
