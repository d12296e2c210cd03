// `megatron report`: the page of one or several runs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report/history.h"

namespace megatron::report {

// One self-contained HTML file: it includes style, script and numbers, and loads nothing else.
// Without scripts everything but the curves is shown. title: "" derives it from the names of the
// runs.
std::string report_page(const std::vector<RunHistory>& histories, const std::string& title);

// True if a file with this beginning is such a page, of any version.
bool is_report_page(std::string_view beginning);

// Numbers of the curves in the form that the page's script reads (page/series.js): JSON that is
// safe in a script element.
std::string curve_data(const std::vector<RunHistory>& histories);

}  // namespace megatron::report
