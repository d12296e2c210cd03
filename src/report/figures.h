// The headline of a run: how it stands, and its key figures, as text.
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
// Always the same labels in the same order; "–" for what a log does not tell.
std::vector<Figure> figures_of(const RunHistory& history);

// Of the last session's "run" record; empty texts and NaN where it has no such key.
std::string text_of(const Json& record, std::string_view key);
double number_of(const Json& record, std::string_view key);

}  // namespace megatron::report
