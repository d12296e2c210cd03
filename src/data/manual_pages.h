// Manual pages as plain text. A troff source with the man or mdoc macros (and tbl tables) becomes
// what a terminal shows, without justification: section headings in column 0, paragraphs filled to
// 78 columns and indented by 7, lists and tagged paragraphs with hanging indents, tables in
// columns. Comments (so licence headers), fonts and page headers are dropped.
//
// A small reader of its own for troff: requests that lay out a page for print are ignored, as are
// files to be included. It always ends: loops, macros and strings that expand without bound are
// cut off.
#pragma once

#include <string>
#include <string_view>

namespace megatron::data {

// `source` is UTF-8. Empty for a page that only names another one (.so).
std::string strip_manual_page(std::string_view source);

}  // namespace megatron::data
