// The files of page/, put into the program by cmake/embed.cmake.
#pragma once

#include <string_view>

namespace megatron::training::report {

extern const std::string_view kPageHtml, kPageCss, kPageScript;

}  // namespace megatron::training::report
