// Task files: JSON lines, one example per line, in one of the formats of tasks/format.h. The first
// line may be {"task": {...}} with settings under the names of lm-evaluation-harness' task files:
//
//   task               name of the task; default: the file's
//   format             of the lines; default: the format whose fields the first line has
//   description        text before the examples
//   num_fewshot        number of examples with answers before each one
//   fewshot_file       their file, next to this one; default: this file
//   fewshot_sampler    first_n or random
//   labels_file        for piqa: file of labels, one per line, next to this file; used if
//                      lines have none; default: STEM-labels.lst
//   target_delimiter   between text and answer; default: a space
//   fewshot_delimiter  after an answer; default: an empty line
//   until, max_gen_toks                                       for generation
//   filters            [{"name", "regex_pattern", "group_select"}...]
//   regexes_to_ignore, ignore_case                            for comparisons
#pragma once

#include <string>

#include "tasks/task.h"

namespace megatron::tasks {

// given: FILE or FORMAT=FILE. The latter is equivalent to {"task": {"task": FORMAT, "format":
// FORMAT}} in the first line. Throws Error naming file, line and field for anything that cannot be
// read, and for a file without an example.
Task read_task(const std::string& given);

}  // namespace megatron::tasks
