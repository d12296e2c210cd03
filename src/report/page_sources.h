// The files of page/, embedded into the program by cmake/embed.cmake.
#pragma once

#include <string_view>

namespace megatron::report {

extern const std::string_view kPageHtml, kPageCss, kPageScript;

}  // namespace megatron::report
