// Task files: JSON lines, one example per line, in one of the formats of tasks/format.h. The first
// line may be {"task": {...}} with settings under the names of lm-evaluation-harness' task files:
//
//   task               name of the task; default the file's
//   format             that of the lines; default the one that the first has the fields of
//   description        text before everything
//   num_fewshot        examples with answers before each
//   fewshot_file       where they come from, beside this file; default the file itself
//   fewshot_sampler    first_n or random
//   labels_file        for piqa: file of labels, one a line, beside this file; used if lines
//                      have none; default STEM-labels.lst
//   target_delimiter   between text and answer; default a space
//   fewshot_delimiter  behind an answer; default an empty line
//   until, max_gen_toks                                       of generation
//   filters            [{"name", "regex_pattern", "group_select"}...]
//   regexes_to_ignore, ignore_case                            of comparisons
#pragma once

#include <string>

#include "tasks/task.h"

namespace megatron::tasks {

// given: FILE or FORMAT=FILE. The latter is equivalent to {"task": {"task": FORMAT, "format":
// FORMAT}} in the first line. Throws Error naming file, line and field for anything that cannot be
// read, and for a file without an example.
Task read_task(const std::string& given);

}  // namespace megatron::tasks
