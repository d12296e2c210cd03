#include <algorithm>
#include <cmath>

#include "base/columns.h"
#include "tasks/task_evaluation.h"

namespace megatron::tasks {
namespace {

std::string number(double value) { return std::isnan(value) ? "" : fmt::format("{:.4f}", value); }

Json number_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(); }

Json::Object scores_json(std::span<const TaskResult::Score> scores) {
  Json::Object all;
  for (const auto& [metric, estimate] : scores) {
    all.emplace_back(metric.name, number_or_null(estimate.value));
    all.emplace_back(metric.name + "_stderr", number_or_null(estimate.standard_error));
  }
  return all;
}

}  // namespace

std::vector<TaskResult::Score> overall(std::span<const TaskResult> results) {
  std::vector<TaskResult::Score> all;
  std::vector<std::vector<Part>> parts;
  for (const TaskResult& result : results) {
    for (const auto& [metric, estimate] : result.scores) {
      if (metric.is_perplexity) continue;  // a mean of exponentials is meaningless
      const auto at = std::ranges::find(
          all, metric.name, [](const TaskResult::Score& score) { return score.metric.name; });
      const auto i = static_cast<size_t>(at - all.begin());
      if (at == all.end()) {
        all.push_back({metric, {}});
        parts.emplace_back();
      }
      parts[i].push_back({estimate, result.examples});
    }
  }
  for (size_t i = 0; i < all.size(); ++i) all[i].estimate = pooled(parts[i]);
  return all;
}

std::string table(std::span<const TaskResult> results) {
  std::vector<std::vector<std::string>> rows = {{"task", "examples", "metric", "value", "stderr"}};
  const auto add = [&](const std::string& name, int64_t examples,
                       std::span<const TaskResult::Score> scores) {
    for (size_t i = 0; i < scores.size(); ++i)
      rows.push_back({i == 0 ? name : "", i == 0 ? std::to_string(examples) : "",
                      scores[i].metric.name, number(scores[i].estimate.value),
                      number(scores[i].estimate.standard_error)});
  };
  int64_t examples = 0;
  for (const TaskResult& result : results) {
    add(result.task, result.examples, result.scores);
    examples += result.examples;
  }
  if (results.size() > 1) add("all", examples, overall(results));
  return aligned_columns(rows, {false, true, false, true, true});
}

Json json(std::span<const TaskResult> results) {
  Json::Object tasks;
  for (const TaskResult& result : results) {
    Json::Object one = {{"examples", result.examples}};
    for (auto& member : scores_json(result.scores)) one.push_back(std::move(member));
    tasks.emplace_back(result.task, std::move(one));
  }
  return Json::Object{{"tasks", std::move(tasks)}, {"all", scores_json(overall(results))}};
}

}  // namespace megatron::tasks
