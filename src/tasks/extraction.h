// Extracts the answer from a generated text for comparison.
#pragma once

#include <string>
#include <string_view>

#include "tasks/task.h"

namespace megatron::tasks {

// Part of a text that a filter selects, without surrounding white space; "[invalid]" if it selects
// nothing.
std::string extracted(const Filter& filter, std::string_view text);

// True if an answer matches the target by the task's comparison.
bool is_match(const Task& task, std::string_view answer, std::string_view target);

// Throws Error naming the task's file and a pattern that is not a regular expression.
void check_patterns(const Task& task);

}  // namespace megatron::tasks
