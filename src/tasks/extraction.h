// What a generated text is compared by.
#pragma once

#include <string>
#include <string_view>

#include "tasks/task.h"

namespace megatron::tasks {

// What a filter takes from a text, without white space around it; "[invalid]" where it takes nothing.
std::string extracted(const Filter& filter, std::string_view text);

// Whether an answer is the target, as a task compares.
bool is_match(const Task& task, std::string_view answer, std::string_view target);

// Throws Error naming the task's file and the pattern that is no regular expression.
void check_patterns(const Task& task);

}  // namespace megatron::tasks
