// Line formats of known data sets.
#pragma once

#include <span>
#include <string_view>

#include "tasks/item.h"
#include "tasks/task.h"

namespace megatron::tasks {

// lambada          {"text": TEXT}: the last word is the expected continuation
// hellaswag        {"activity_label", "ctx_a", "ctx_b", "endings": [TEXT...], "label": NUMBER}
// mmlu             {"question", "choices": [TEXT...], "answer": NUMBER, "subject" (may be absent)}
// arc_easy, arc_challenge {"question", "choices": {"text": [TEXT...], "label": [TEXT...]},
// "answerKey": LABEL}, or
//                  {"question": {"stem", "choices": [{"text", "label"}...]}, "answerKey": LABEL}
// piqa             {"goal", "sol1", "sol2", "label": 0 or 1}; the label may be in a file next to it
// winogrande       {"sentence": TEXT with "_", "option1", "option2", "answer": "1" or "2"}
// boolq            {"question", "passage", "label" or "answer": 0, 1, true or false}
// truthfulqa_mc1   {"question", "mc1_targets": {"choices": [TEXT...], "labels": [0 or 1...]}}
// truthfulqa_mc2   the same with mc2_targets
// gsm8k            {"question", "answer": "... #### 42"}
// multiple_choice  {"context", "choices": [TEXT...], "gold": NUMBER}
// loglikelihood    {"context", "continuation"}
// generate_until   {"context", "target"}
// Other fields are ignored.
struct Format {
  std::string_view name;
  TaskKind kind;
  std::span<const std::string_view> fields;  // fields that identify a line of this format
  void (*read)(const Item& item, Example& example);
  void (*defaults)(Task& task);  // sets the defaults of lm-evaluation-harness' task of that name
  std::string_view labels = {};  // field that a file of labels may provide instead
};

std::span<const Format> formats();
// Format of a line. Throws Error naming its position, its fields and the known formats.
const Format& format_of(const Item& item);
// Finds a format by name; null if there is none.
const Format* find_format(std::string_view name);
std::string format_names();  // "hellaswag, arc_easy, ..."

Example read_example(const Format& format, const Item& item);

}  // namespace megatron::tasks
