// Console lines of a run. An unknown figure is n/a.
#pragma once

#include <string>

#include "report/log/record.h"

namespace megatron::report {

inline constexpr int kConsoleColumns = 120;

// Lines of at most kConsoleColumns. The first has loss, tokens/s of a step and of the whole run,
// time left, and as much of the rest as fits (docs/log.md gives the order; the JSON lines have
// everything); then metrics, if they do not all fit on the first.
std::string console_line(const StepRecord& record, const RunRecord& run);
std::string console_line(const ValidationRecord& record);
// One line: control characters that would break or colour it are escaped.
std::string console_line(const SampleRecord& record);

// Summary of a run, printed last: "trained 40 steps, ...".
std::string closing_line(const RunTotals& totals, const RunRecord& run);

}  // namespace megatron::report
