// The headline of a run: its state and key figures, as text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report/history.h"

namespace megatron::report {

struct Status {
  std::string_view kind;  // "done", "stopped", "error" or "open"
  std::string text;
};
Status status_of(const RunHistory& history);

struct Figure {
  std::string label, value, detail;
};
// Always the same labels in the same order; "–" for values that a log does not have.
std::vector<Figure> figures_of(const RunHistory& history);

// Values from the last session's "run" record; empty text or NaN if it lacks the key.
std::string text_of(const Json& record, std::string_view key);
double number_of(const Json& record, std::string_view key);

}  // namespace megatron::report
