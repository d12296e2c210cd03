// Parts of the page that need no script: figures, memory, samples, configuration, events. Each is
// HTML; all text from a log is escaped.
#pragma once

#include <string>
#include <vector>

#include "report/history.h"

namespace megatron::report {

std::string key_figures(const std::vector<RunHistory>& histories);
std::string memory_by_class(const std::vector<RunHistory>& histories);   // "" if no log has it
std::string metrics_by_layer(const std::vector<RunHistory>& histories);  // "" if no log has any
std::string samples(const std::vector<RunHistory>& histories);           // newest first
std::string saves_and_notes(const std::vector<RunHistory>& histories);
// Differences between the runs, the flags, the environment, and the commands of each start.
std::string configuration(const std::vector<RunHistory>& histories);

// A marker in the run's colour.
std::string swatch(size_t run);
std::string time_cell(double seconds_since_1970);
// A table with horizontal scrolling. head, cells: HTML.
std::string table(const std::string& label, const std::vector<std::string>& head,
                  const std::vector<std::vector<std::string>>& rows,
                  const std::string& kind = std::string());

}  // namespace megatron::report
