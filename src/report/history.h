// A run's whole log: numbers as curves, everything else as the records themselves.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "device/arena.h"
#include "report/curve.h"

namespace megatron::report {

// Columns of a step's row. Shares are 0 to 1. `elapsed`: seconds that the run has been running, in
// all sessions together, without the time between them.
enum StepColumn : size_t {
  kIteration,
  kElapsed,
  kTokens,
  kLoss,
  kLearningRate,
  kGradientNorm,
  kTokensPerSecond,
  kFlopsPerSecond,
  kPeakShare,
  kDataWait,
  kCommunicationWait,
  kSaveWait,
  kBatchSize,
  kStepSeconds,
  kSecondsLeft,
  kProcessMemory,
  kFirstMemoryClass,
  kStepColumns = kFirstMemoryClass + static_cast<size_t>(kMemoryClasses)
};

// Columns of a validation's row.
enum ValidationColumn : size_t { kValidationIteration, kValidationElapsed, kValidationLoss };

struct ValidationCurve {
  std::string set;
  Curve curve;
  double best = 0;  // lowest loss; NaN: all are NaN
  int64_t best_iteration = 0;
};

// Records of which at most a few hundred are kept: beyond that, every second one is dropped; the
// newest is always kept.
struct Records {
  std::vector<Json> kept;
  int64_t seen = 0;
  void add(Json record, size_t limit);
};

struct Session {  // part of a run from a start or restart to the next
  Json run;       // its "run" record
  int64_t iteration = 0;
  double time = 0;     // start in seconds since 1970
  double elapsed = 0;  // seconds of the run before it
  std::optional<Json> end;
  bool trained = false;  // whether it has a record of a step
};

struct RunHistory {
  std::string name, path;  // path: the JSONL file
  std::vector<Session> sessions;
  Curve steps;
  // "layer_metrics" of the last step that has them, and its iteration; null: no step has them.
  Json layer_metrics;
  int64_t layer_metrics_iteration = 0;
  std::vector<ValidationCurve> validations;  // one per set
  Records samples, saves, notes;
  double first_time = 0, last_time = 0, elapsed = 0;  // last_time: of the last record
  int64_t last_iteration = 0;
  double median_tokens_per_second = 0, median_peak_share = 0;  // NaN: unknown
  double median_flops_per_second = 0;
  // Tokens trained on / elapsed, including evaluation, saves, logging and repeated work; NaN:
  // unknown.
  double overall_tokens_per_second = 0;
  int64_t loss_not_finite = 0;       // number of steps
  int64_t replaced = 0;              // records of iterations that a resumed run repeated
  int64_t damaged = 0;               // lines that are not records, except for a truncated last line
  std::vector<std::string> damages;  // the first few: file, line and reason
  bool cut = false;                  // the last line is truncated
  int64_t bytes = 0;
};

// Reads a run's log, keeping at most `rows` step records (Curve). run: a JSONL file, or a directory
// with log.jsonl.
//
// A line that is not a record is counted and skipped. Records beyond the iteration that a later
// session resumed from are replaced by that session's. Throws Error if there is no such file, if it
// is not the log of a run, or if a newer version wrote it.
RunHistory read_history(const std::string& run, size_t rows);

// Reads all of them. Names are the last components of their paths, as many as distinguish them.
// Each keeps few enough rows for a small page. Throws Error like read_history, if a run is given
// twice, and for more than 64 runs.
std::vector<RunHistory> read_histories(const std::vector<std::string>& runs);

}  // namespace megatron::report
