// The lines of a run on the console. A figure that is not known is n/a.
#pragma once

#include <string>

#include "report/log/record.h"

namespace megatron::report {

inline constexpr int kConsoleColumns = 120;

// Lines of at most kConsoleColumns: loss, tokens/s of a step and of the run in all, time left, and of the rest
// (docs/log.md has the order) as much as fits on the first, the JSON lines have everything; then metrics, where they do
// not all fit on that.
std::string console_line(const StepRecord& record, const RunRecord& run);
std::string console_line(const ValidationRecord& record);
// In one line: what would break or colour it is escaped.
std::string console_line(const SampleRecord& record);

// What a run got in all, its last word: "trained 40 steps, ...".
std::string closing_line(const RunTotals& totals, const RunRecord& run);

}  // namespace megatron::report
