// A run's log, read whole: numbers as curves, everything else as the records themselves.
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

// The columns of a step's row. Shares are 0 to 1. `elapsed`: seconds that the run has been running,
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

// The columns of a validation's row.
enum ValidationColumn : size_t { kValidationIteration, kValidationElapsed, kValidationLoss };

struct ValidationCurve {
  std::string set;
  Curve curve;
  double best = 0;  // lowest loss; NaN: none is a number
  int64_t best_iteration = 0;
};

// Records of which at most a few hundred are kept: with more, every second one goes, the newest
// stays.
struct Records {
  std::vector<Json> kept;
  int64_t seen = 0;
  void add(Json record, size_t limit);
};

struct Session {  // from a start or restart to the next
  Json run;       // its "run" record
  int64_t iteration = 0;
  double time = 0;     // when it began, seconds since 1970
  double elapsed = 0;  // of the run, before it
  std::optional<Json> end;
  bool trained = false;  // true if it has a record of a step
};

struct RunHistory {
  std::string name, path;  // path: the JSONL file
  std::vector<Session> sessions;
  Curve steps;
  // The "layer_metrics" of the last step that has them, and its iteration; null: none has.
  Json layer_metrics;
  int64_t layer_metrics_iteration = 0;
  std::vector<ValidationCurve> validations;  // one a set
  Records samples, saves, notes;
  double first_time = 0, last_time = 0, elapsed = 0;  // last_time: of the last record
  int64_t last_iteration = 0;
  double median_tokens_per_second = 0, median_peak_share = 0;  // NaN: not known
  double median_flops_per_second = 0;
  // Tokens trained on / elapsed, with evaluation, saves, logging and work that was done again; NaN:
  // not known.
  double overall_tokens_per_second = 0;
  int64_t loss_not_finite = 0;  // steps
  int64_t replaced = 0;         // records of iterations that a resumed run did again
  int64_t damaged = 0;          // lines that are no record, but for a last line that is cut short
  std::vector<std::string> damages;  // the first few: file, line and reason
  bool cut = false;                  // the last line ends in the middle
  int64_t bytes = 0;
};

// Of step records at most `rows` are kept (Curve). run: a JSONL file, or a directory with
// log.jsonl.
//
// A line that is no record is counted and passed over; a record that belongs to an iteration beyond
// the one that a later session resumed from is replaced by that session's. Throws Error when there
// is no such file, when it is not the log of a run, and when a newer version wrote it.
RunHistory read_history(const std::string& run, size_t rows);

// All of them. Names are the last parts of their paths, as many as it takes to tell them apart.
// Each keeps as many rows as keep the page small. Throws Error as read_history, when a run is given
// twice, and for more than 64 runs.
std::vector<RunHistory> read_histories(const std::vector<std::string>& runs);

}  // namespace megatron::report
