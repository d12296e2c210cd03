// `megatron report`: the page of one or several runs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report/history.h"

namespace megatron::report {

// One HTML file that needs nothing else: style, script and numbers are in it, and it asks no other
// place for anything. Without scripts everything but the curves is there. title: "" makes one of
// the names of the runs.
std::string report_page(const std::vector<RunHistory>& histories, const std::string& title);

// Whether a file that begins like this is such a page, of this version or another.
bool is_report_page(std::string_view beginning);

// The numbers of the curves, as the page's script reads them (page/series.js): JSON that may stand
// in a script element.
std::string curve_data(const std::vector<RunHistory>& histories);

}  // namespace megatron::report
