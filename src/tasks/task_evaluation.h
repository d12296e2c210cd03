// `megatron eval --tasks`: a model's scores on tasks, with one line per example from which a killed
// run continues.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields.h"
#include "base/json.h"
#include "base/resumable_lines.h"
#include "tasks/asking.h"
#include "tasks/metrics.h"
#include "tasks/task.h"

namespace megatron::tasks {

struct TaskSettings {
  std::vector<std::string> files;
  std::optional<int64_t> num_fewshot, limit;
  std::optional<std::string> output;
  bool add_bos_token = false;

  void fields(Fields& fields);
  void check() const;                                               // throws Error naming the flag
  void check_output(const std::vector<std::string>& inputs) const;  // --output
};

struct TaskResult {
  std::string task;
  int64_t examples = 0;
  struct Score {
    Metric metric;
    Estimate estimate;
  };
  std::vector<Score> scores;
};

// The model that answers. All members are borrowed.
struct AskedModel {
  const models::Stage& stage;
  Runtime& runtime;
  const tokenizers::Tokenizer& tokenizer;
  AskOptions options;
  Json identity;  // an object with everything that answers depend on besides tasks and TaskSettings
};

class TaskEvaluation {
 public:
  // Reads all files. Throws Error naming file, line and field.
  explicit TaskEvaluation(TaskSettings settings);

  const std::vector<Task>& tasks() const { return tasks_; }
  // Asks the examples that are not in an unfinished --output. show: progress.
  std::vector<TaskResult> run(const AskedModel& model, bool show) const;

 private:
  int64_t count() const;  // number of examples
  std::vector<Question> questions(const AskedModel& model, const ResumableLines& lines,
                                  std::vector<int64_t>& numbers) const;
  void ask_all(const AskedModel& model, ResumableLines& lines, bool show) const;
  Json settings_of(const AskedModel& model) const;
  int64_t number_of(const Json& line) const;
  std::string line_of(int64_t number, const Answer& answer) const;
  std::vector<TaskResult> results(const ResumableLines& lines, ThreadPool& pool) const;
  // Examples of all tasks are numbered consecutively from 0.
  struct Place {
    size_t task = 0, example = 0;
  };
  Place place(int64_t number) const;
  size_t size(const Task& task) const;

  TaskSettings s_;
  std::vector<Task> tasks_;
};

// Scores over all tasks that have a metric, as if they were one task.
std::vector<TaskResult::Score> overall(std::span<const TaskResult> results);

std::string table(std::span<const TaskResult> results);
Json json(std::span<const TaskResult> results);

// True if a file with this beginning holds lines of --output.
bool is_task_lines(std::string_view beginning);

}  // namespace megatron::tasks
