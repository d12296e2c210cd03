#include "report/log/run_log.h"

#include "base/error.h"
#include "base/function_ref.h"
#include "base/log.h"
#include "report/log/console.h"
#include "report/log/interval.h"
#include "report/log/json_lines_log.h"
#include "report/log/machine.h"
#include "report/log/megatron_line.h"
#include "report/log/tensorboard.h"
#include "report/log/timers.h"

namespace megatron::report {

void LogSettings::fields(Fields& f) {
  f.begin_group("logging");
  f.add("log-interval", &log_interval,
        "steps between log lines, on the console and in --log-jsonl; the first and the last step "
        "are always logged")
      .in_short_help();
  f.add("log-jsonl", &log_jsonl,
        "file for the log as JSON lines (docs/log.md); default log.jsonl in the --save folder; a "
        "resumed run appends to it, a new run renames an existing file to FILE.1, FILE.2 ...");
  f.add("tensorboard-dir", &tensorboard_dir,
        "folder for TensorBoard event files; curves over consumed samples are in its subfolder "
        "vs_samples; default: none")
      .in_short_help();
  f.add("tensorboard-log-interval", &tensorboard_log_interval,
        "steps between TensorBoard points, independent of --log-interval")
      .of([this] { return tensorboard_dir ? "" : "--tensorboard-dir is not given"; });
  f.add_enum<LogFormat>("log-format", &format,
                        {{"console", LogFormat::console}, {"megatron", LogFormat::megatron}},
                        "format of step and evaluation lines on the console: console (at most 120 "
                        "columns) or megatron (Megatron-LM's format, for scripts that parse it)");
  f.add_switch("log-params-norm", &log_params_norm, true, "also log the L2 norm of the weights");
  f.add_switch("log-entropy", &log_entropy, true,
               "also log the mean entropy of the next token over the tokens that carry loss, for "
               "which each step computes their logits once more");
  f.add_switch("log-num-zeros-in-grad", &log_num_zeros_in_grad, true,
               "also log the number of zero elements in the gradients");
  f.add_switch("log-progress", &log_progress, true,
               "write progress.txt in the --save folder: starts and checkpoints of all jobs of "
               "the run, with FLOP/s");
  f.add("timing-log-level", &timing_log_level,
        "log times in ms per step; 1: parts of the step, with min and max over the ranks; 2: also "
        "forward and backward. The device is synchronized at the end of each part");
  f.add("timing-log-option", &timing_log_option, {"max", "minmax", "all"},
        "with --timing-log-level: log the max time over the ranks, min and max, or the times of "
        "all ranks")
      .of([this] {
        return timing_log_level > 0 ? "" : "--timing-log-level is 0, so nothing is timed";
      });
  f.add_switch("log-timers-to-tensorboard", &log_timers_to_tensorboard, true,
               "write the times of --timing-log-level, max over the ranks, to TensorBoard")
      .of([this] {
        return timing_log_level == 0 ? "--timing-log-level is 0, so nothing is timed"
               : tensorboard_dir     ? ""
                                     : "--tensorboard-dir is not given";
      });
  f.add("wandb-project", &wandb_project,
        "Weights & Biases project, stored in the log for tools/wandb_import, which turns the log "
        "into a W&B run");
  f.add("wandb-exp-name", &wandb_exp_name, "for tools/wandb_import: name of the run");
  f.add("wandb-entity", &wandb_entity, "for tools/wandb_import: entity of the run");
  f.add("wandb-save-dir", &wandb_save_dir,
        "for tools/wandb_import: folder for the files of the run");
}

void LogSettings::check() const {
  MG_CHECK(log_interval > 0, "--log-interval is {}; it must be at least 1 step", log_interval);
  MG_CHECK(timing_log_level >= 0 && timing_log_level <= 2,
           "--timing-log-level is {}; it must be 0, 1 or 2", timing_log_level);
  MG_CHECK(tensorboard_log_interval > 0,
           "--tensorboard-log-interval is {}; it must be at least 1 step",
           tensorboard_log_interval);
  MG_CHECK(!log_jsonl || !log_jsonl->empty(), "--log-jsonl is empty; give the name of a file");
  MG_CHECK(!tensorboard_dir || !tensorboard_dir->empty(),
           "--tensorboard-dir is empty; give the name of a folder");
}

bool LogSettings::has_line(int64_t iteration, int64_t last) const {
  return iteration == 1 || iteration % log_interval == 0 || iteration == last;
}

bool LogSettings::has_point(int64_t iteration) const {
  return tensorboard_dir && iteration % tensorboard_log_interval == 0;
}

struct RunLog::State {
  const RunRecord run;
  const int64_t log_interval, tensorboard_interval;
  const LogFormat format;
  Progress* const progress;
  std::FILE* const console;
  std::optional<JsonLinesLog> json;
  std::optional<TensorBoard> tensorboard;
  Interval interval{}, tensorboard_points{};

  void print(const std::string& line) {
    if (progress != nullptr) {
      progress->print(line, console);
    } else {
      std::fprintf(console, "%s\n", line.c_str());
      std::fflush(console);
    }
  }

  static StepRecord take(Interval& steps) {
    StepRecord mean = steps.take();
    if (mean.process_memory == 0) mean.process_memory = resident_bytes();
    return mean;
  }

  // Reports a failing log once, and stops writing it.
  template <class Log>
  void attempt(std::optional<Log>& log, std::string_view what, FunctionRef<void(Log&)> write) {
    if (!log) return;
    try {
      write(*log);
    } catch (const Error& error) {
      log.reset();
      log::warning("{} cannot be written any more and ends here; the run continues: {}", what,
                   error.what());
    }
  }
  void to_json_lines(FunctionRef<Json()> line) {
    attempt<JsonLinesLog>(json, "the log of --log-jsonl",
                          [&](JsonLinesLog& log) { log.write(line()); });
  }
  void to_tensorboard(FunctionRef<void(TensorBoard&)> write) {
    attempt<TensorBoard>(tensorboard, "the log of --tensorboard-dir", write);
  }
};

RunLog::RunLog(const LogSettings& settings, const std::string& save_directory, const RunRecord& run,
               Progress* progress, std::FILE* console)
    : state_(new State{.run = run,
                       .log_interval = settings.log_interval,
                       .tensorboard_interval = settings.tensorboard_log_interval,
                       .format = settings.format,
                       .progress = progress,
                       .console = console}) {
  settings.check();
  const double time = seconds_since_1970();
  std::string path = settings.log_jsonl.value_or("");
  if (path.empty() && !save_directory.empty()) path = save_directory + "/log.jsonl";
  if (!path.empty()) {
    try {
      state_->json.emplace(path, run.iteration);
      state_->json->write(to_json(run, time));
    } catch (const Error& error) {
      fail("{}: {}",
           settings.log_jsonl
               ? "--log-jsonl"
               : "the log in the --save folder (choose another file with --log-jsonl)",
           error.what());
    }
  }
  if (settings.tensorboard_dir) {
    try {
      state_->tensorboard.emplace(*settings.tensorboard_dir, run, time);
    } catch (const Error& error) {
      fail("--tensorboard-dir: {}", error.what());
    }
  }
}

RunLog::~RunLog() = default;

void RunLog::step(const StepRecord& record) {
  const double time = seconds_since_1970();
  state_->interval.add(record);
  state_->tensorboard_points.add(record);
  const int64_t i = record.iteration;
  if (i == 1 || i % state_->log_interval == 0 || i == state_->run.train_iters) {
    const StepRecord mean = state_->take(state_->interval);
    state_->print(state_->format == LogFormat::megatron ? megatron_line(mean, state_->run, time)
                                                        : console_line(mean, state_->run));
    if (!mean.timers.empty()) state_->print(timer_text(mean.timers, mean.timing_option));
    state_->to_json_lines([&] { return to_json(mean, time); });
  }
  if (i % state_->tensorboard_interval == 0) {
    const StepRecord mean = state_->take(state_->tensorboard_points);
    state_->to_tensorboard([&](TensorBoard& board) { board.step(mean, time); });
  }
}

void RunLog::validation(const ValidationRecord& record) {
  const double time = seconds_since_1970();
  state_->print(state_->format == LogFormat::megatron ? megatron_lines(record)
                                                      : console_line(record));
  state_->to_json_lines([&] { return to_json(record, time); });
  state_->to_tensorboard([&](TensorBoard& board) { board.validation(record, time); });
}

void RunLog::save(const SaveRecord& record) {
  state_->to_json_lines([&] { return to_json(record, seconds_since_1970()); });
}

void RunLog::sample(const SampleRecord& record) {
  const double time = seconds_since_1970();
  state_->print(console_line(record));
  state_->to_json_lines([&] { return to_json(record, time); });
  state_->to_tensorboard([&](TensorBoard& board) { board.sample(record, time); });
}

void RunLog::note(int64_t iteration, bool warning, const std::string& text) {
  state_->to_json_lines(
      [&] { return note_to_json(iteration, warning, text, seconds_since_1970()); });
}

void RunLog::end(int64_t iteration, EndReason reason, const std::string& text,
                 const RunTotals& totals) {
  state_->to_json_lines(
      [&] { return end_to_json(iteration, reason, text, seconds_since_1970(), totals); });
}

}  // namespace megatron::report
