// Records that a run logs. The same records go to the console, to the JSONL file and to
// TensorBoard.
//
// JSONL, one object per line, UTF-8, "type" first. Numbers read back to exactly the same value. A
// file is only appended to; a resumed run first removes records beyond the iteration it resumes
// from, and a truncated last line. Keys that do not apply are absent. `schema` is incremented when
// a meaning changes, but not for new keys. docs/log.md describes every key.
//
//   {"type":"run", "schema":1, "time":.., "version":.., "host":.., "command":[..],
//    "iteration":<resumed from, 0: none>, "flags":{"lr":"3e-3",..}, "model":{..}, "parameters":n,
//    "layout":{"ranks":..,"data_parallel":..,..}, "threads":n,
//    "machine":{"cpu":..,"cores":..,"memory_bytes":..,"device":..}, "precision":"bf16",
//    "peak_flops":.., "flop_formula":"..", "train_iters":n, "seq_length":n,
//    "consumed_tokens":<before this start>}
//   {"type":"step", "time":.., "iteration":n, "consumed_samples":n, "consumed_tokens":n, "loss":x,
//    "learning_rate":x, "gradient_norm":x, "parameter_norm":x, "zero_gradients":n,
//    "metrics":{"z_loss":x,..}, "layer_metrics":{"layer":[n,..], "expert_load":[x,..], ..},
//    "weight_decay":x, "loss_scale":x, "skipped":n, "global_batch_size":n,
//    "steps":<of this interval>, "seconds":<per step>, "tokens_per_second":x,
//    "overall_tokens_per_second":x, "flops_per_second":x, "peak_share":<0 to 1>,
//    "data_wait":<share of the time>, "communication_wait":<share>, "save_wait":<share>,
//    "seconds_left":x, "timers":{"forward-backward":{"least":s,"most":s},..},
//    "memory":{"parameters":bytes, .. one per MemoryClass, "process":bytes}}
//   {"type":"validation", "time":.., "iteration":n, "set":"valid", "loss":x, "perplexity":x,
//    "tokens":n, "mtp_1 loss":x, ..}
//   {"type":"save", "time":.., "iteration":n, "path":"..", "bytes":n, "seconds":x,
//    "wait":<seconds that training stood still>}
//   {"type":"sample", "time":.., "iteration":n, "prompt":"..", "text":".."}
//   {"type":"note", "time":.., "iteration":n, "level":"info|warning", "text":".."}
//   {"type":"end", "time":.., "iteration":n,
//    "reason":"done|signal|exit-interval|exit-duration|error", "text":"..", "steps":n, "tokens":n,
//    "seconds":x, "step_seconds":x, "evaluation_seconds":x, "save_seconds":x,
//    "tokens_per_second":x, "overall_tokens_per_second":x}
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "autograd/metrics.h"
#include "base/json.h"
#include "device/arena.h"

namespace megatron::report {

struct RunRecord {
  int64_t iteration = 0;                                   // iteration resumed from; 0: new run
  std::vector<std::pair<std::string, std::string>> flags;  // those that differ from their defaults
  Json model, layout;                                      // objects
  int64_t parameters = 0, threads = 1, train_iters = 0, seq_length = 0;
  int64_t consumed_tokens = 0;  // of the iterations before
  std::string device, precision, flop_formula;
  double peak_flops = 0;  // of this machine, all threads; 0: unknown
};

// Times of a part of the step (--timing-log-level).
struct TimerFigure {
  std::string_view name;      // "forward-backward"
  std::vector<double> ranks;  // mean seconds per step, by rank
  double least() const;
  double most() const;
};

struct StepRecord {
  int64_t iteration = 0, consumed_samples = 0, consumed_tokens = 0;
  double loss = 0, learning_rate = 0, gradient_norm = 0, weight_decay = 0;  // of the last step
  double parameter_norm = 0;  // of all weights after the step; 0: not requested
  // Zero elements in the last step's gradients; negative: not requested.
  int64_t zero_gradients = -1;
  std::vector<MetricValue> metrics;  // the model's metrics of the last step
  double loss_scale = 0;             // of the last step; 0: no loss scaling
  int64_t skipped = 0;               // how many of `steps` did not update the weights
  int64_t global_batch_size = 0;
  int64_t steps = 1;   // since the previous record
  double seconds = 0;  // mean per step
  double tokens_per_second = 0;
  // Tokens trained on / time since this start, including evaluation, saves and logging; 0: unknown.
  double overall_tokens_per_second = 0;
  double flops_per_second = 0;
  double peak_share = -1;  // share of the measured peak; negative: unknown ("n/a")
  double data_wait = 0, communication_wait = 0, save_wait = 0;  // as shares of the time
  double seconds_left = 0;
  std::array<int64_t, kMemoryClasses> memory{};   // peak bytes in use so far, by class, on rank 0
  std::vector<TimerFigure> timers, timer_points;  // for the log's interval, and for TensorBoard's
  std::string timing_option;                      // --timing-log-option for `timers`
  int64_t process_memory = 0;  // resident bytes of the process; 0: the log determines it
  // For an Interval: mean loss over the steps that updated the weights (NaN: none did), and the
  // number of steps with a non-finite loss.
  double mean_loss = 0;
  int64_t losses_not_finite = 0;
};

struct ValidationRecord {
  int64_t iteration = 0;
  std::string set;              // "valid", or its name
  double loss = 0, tokens = 0;  // tokens: or what else the loss is a mean over
  // Metrics of an objective, or of depths of multi-token prediction.
  struct Metric {
    std::string name;
    double value = 0;
  };
  std::vector<Metric> metrics = {};
  bool of_objective = false;  // the loss is an objective's, not the logarithm of a perplexity
};

struct SaveRecord {
  int64_t iteration = 0, bytes = 0;
  std::string path;
  double seconds = 0, wait = 0;
};

struct SampleRecord {
  int64_t iteration = 0;
  std::string prompt, text;
};

// exp(loss), with the loss limited to 20 (as Megatron-LM prints it).
double perplexity(double loss);

// Replaces bytes that are not UTF-8 by U+FFFD.
std::string readable(std::string_view text);

// Totals of a run, from this start to its end.
struct RunTotals {
  int64_t steps = 0, tokens = 0;
  double flops = 0;
  // Wall time, and its parts in steps, in evaluation, and for saves. The rest is logging and
  // samples.
  double seconds = 0, step_seconds = 0, evaluation_seconds = 0, save_seconds = 0;

  double tokens_per_second() const { return static_cast<double>(tokens) / step_seconds; }
  double overall_tokens_per_second() const { return static_cast<double>(tokens) / seconds; }
};

enum class EndReason { done, signal, exit_interval, exit_duration, error };

}  // namespace megatron::report
