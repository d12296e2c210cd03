// Multiple choice in the published line formats of ARC, PIQA, WinoGrande, BoolQ and TruthfulQA,
// with the prompts of lm-evaluation-harness' task files. tasks/format.h lists the fields.
#pragma once

#include "tasks/item.h"
#include "tasks/task.h"

namespace megatron::tasks {

void read_arc(const Item& item, Example& example);
void read_piqa(const Item& item, Example& example);
void read_winogrande(const Item& item, Example& example);
void read_boolq(const Item& item, Example& example);
void read_truthfulqa_mc1(const Item& item, Example& example);
void read_truthfulqa_mc2(const Item& item, Example& example);
void truthfulqa_defaults(Task& task);

}  // namespace megatron::tasks
