// The log of a run: console lines, JSONL, TensorBoard. Only on rank 0.
#pragma once

#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "base/fields.h"
#include "base/progress.h"
#include "report/log/record.h"

namespace megatron::report {

// Format of console lines: this program's or Megatron-LM's.
enum class LogFormat { console, megatron };

struct LogSettings {
  int64_t log_interval = 100;
  std::optional<std::string> log_jsonl;  // default: log.jsonl in the --save directory
  std::optional<std::string> tensorboard_dir;
  int64_t tensorboard_log_interval = 1;
  bool log_params_norm = false, log_num_zeros_in_grad = false, log_entropy = false;
  bool log_progress = false;     // progress.txt in the --save directory (progress_file.h)
  int64_t timing_log_level = 0;  // level of the timers (timers.h)
  std::string timing_log_option = "minmax";
  bool log_timers_to_tensorboard = false;
  // Stored in the run record's flags, for tools/wandb_import.
  std::optional<std::string> wandb_project, wandb_exp_name, wandb_entity, wandb_save_dir;
  LogFormat format = LogFormat::console;

  void fields(Fields& fields);
  void check() const;  // throws Error naming the flag
  // True if a log line follows this iteration; last: the run's last iteration.
  bool has_line(int64_t iteration, int64_t last) const;
  bool has_point(int64_t iteration) const;  // whether TensorBoard gets a point
};

class RunLog {
 public:
  // save_directory: "" for none. Opens the files; in an earlier run's files, records beyond
  // run.iteration are removed (with run.iteration 0 an existing file is replaced by a new one and
  // kept as <name>.1, .2 ...). Throws Error naming a file that cannot be written. progress: may be
  // null. console: destination of lines.
  RunLog(const LogSettings& settings, const std::string& save_directory, const RunRecord& run,
         Progress* progress, std::FILE* console = stdout);
  ~RunLog();

  // Called after every step, or after several (record.steps). Logs means: on the console and in
  // JSONL over --log-interval (at iteration 1, at multiples, and at the last one, run.train_iters),
  // in TensorBoard over --tensorboard-log-interval.
  void step(const StepRecord& record);
  void validation(const ValidationRecord& record);  // console, JSONL, TensorBoard
  void sample(const SampleRecord& record);          // console, JSONL, TensorBoard
  void save(const SaveRecord& record);              // JSONL only, like the next two
  void note(int64_t iteration, bool warning, const std::string& text);
  void end(int64_t iteration, EndReason reason, const std::string& text,
           const RunTotals& totals = {});
  // A failure to write the log never ends a run: it is reported once, and the file is not written
  // any more.

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace megatron::report
