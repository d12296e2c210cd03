// The log of a run: a line on the console, JSONL, TensorBoard. Of rank 0 alone.
#pragma once

#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "base/fields.h"
#include "base/progress.h"
#include "report/log/record.h"

namespace megatron::report {

// Lines on the console: this program's, or those that Megatron-LM prints.
enum class LogFormat { console, megatron };

struct LogSettings {
  int64_t log_interval = 100;
  std::optional<std::string> log_jsonl;  // default: log.jsonl in the --save directory
  std::optional<std::string> tensorboard_dir;
  int64_t tensorboard_log_interval = 1;
  bool log_params_norm = false, log_num_zeros_in_grad = false;
  bool log_progress = false;     // progress.txt in the --save directory (progress_file.h)
  int64_t timing_log_level = 0;  // of the timers (timers.h)
  std::string timing_log_option = "minmax";
  bool log_timers_to_tensorboard = false;
  // Kept in the run record's flags, for tools/wandb_import.
  std::optional<std::string> wandb_project, wandb_exp_name, wandb_entity, wandb_save_dir;
  LogFormat format = LogFormat::console;

  void fields(Fields& fields);
  void check() const;  // throws Error naming the flag
  // Whether a log line follows this iteration; last: of the run.
  bool has_line(int64_t iteration, int64_t last) const;
  bool has_point(int64_t iteration) const;  // of TensorBoard
};

class RunLog {
 public:
  // save_directory: "" for none. Opens the files; of an earlier run's, what lies beyond
  // run.iteration is taken away (run.iteration 0 and an existing file: it is begun anew, the old
  // one kept as <name>.1, .2 ...). Throws Error naming a file that cannot be written. progress: may
  // be null. console: where lines go.
  RunLog(const LogSettings& settings, const std::string& save_directory, const RunRecord& run,
         Progress* progress, std::FILE* console = stdout);
  ~RunLog();

  // After every step, or after several (record.steps). What is logged are means: on the console and
  // in JSONL over --log-interval (at iteration 1, at multiples, and at the last one,
  // run.train_iters), in TensorBoard over --tensorboard-log-interval.
  void step(const StepRecord& record);
  void validation(const ValidationRecord& record);  // console, JSONL, TensorBoard
  void sample(const SampleRecord& record);          // console, JSONL, TensorBoard
  void save(const SaveRecord& record);              // JSONL only, as the next two
  void note(int64_t iteration, bool warning, const std::string& text);
  void end(int64_t iteration, EndReason reason, const std::string& text,
           const RunTotals& totals = {});
  // A failure to write the log never ends a run: it is reported once, and the file is left alone from
  // then.

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace megatron::report
