#include "tasks/task.h"

namespace megatron::tasks {

std::string Task::description_of(const Example& example) const {
  if (description) return *description;
  if (example.subject.empty()) return "";
  std::string subject = example.subject;
  for (char& c : subject)
    if (c == '_') c = ' ';
  return "The following are multiple choice questions (with answers) about " + subject + ".\n\n";
}

std::vector<Metric> metrics_of(const Task& task) {
  switch (task.kind) {
    case TaskKind::loglikelihood: return {{"perplexity", true}, {"acc"}};
    case TaskKind::multiple_choice: return {{"acc"}, {"acc_norm"}, {"acc_bytes"}};
    case TaskKind::multiple_input:
    case TaskKind::true_choices: return {{"acc"}};
    case TaskKind::generation: break;
  }
  if (task.filters.empty()) return {{"exact_match"}};
  std::vector<Metric> metrics;
  for (const Filter& filter : task.filters) metrics.push_back({"exact_match," + filter.name});
  return metrics;
}

}  // namespace megatron::tasks
