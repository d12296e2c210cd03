#include "tasks/task_evaluation.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/command_output.h"
#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "checkpoint/fingerprint.h"
#include "jinja/unicode.h"
#include "tasks/extraction.h"
#include "tasks/task_file.h"

namespace megatron::tasks {
namespace {

// Members of a line that depend on the task's kind, and the value of each metric.
void add_continuation(const Answer& answer, Json::Object& line, Json::Object& metrics) {
  const double value = answer.log_likelihoods[0];
  line.emplace_back("loglikelihood", value);
  line.emplace_back("is_greedy", answer.is_greedy);
  metrics.emplace_back("perplexity", value);
  metrics.emplace_back("acc", answer.is_greedy ? 1.0 : 0.0);
}

Json::Array as_array(std::span<const double> values) { return {values.begin(), values.end()}; }

void add_choices(const Example& example, const Answer& answer, Json::Object& line,
                 Json::Object& metrics) {
  std::vector<double> by_character, by_byte;
  for (size_t i = 0; i < example.choices.size(); ++i) {
    const double value = answer.log_likelihoods[i];
    const std::string& choice = example.choices[i];
    by_character.push_back(value / static_cast<double>(count_characters(choice)));
    by_byte.push_back(value / static_cast<double>(choice.size()));
  }
  line.emplace_back("loglikelihoods", as_array(answer.log_likelihoods));
  line.emplace_back("gold", example.gold);
  const auto is_right = [&](std::span<const double> scores) {
    return static_cast<int64_t>(largest(scores)) == example.gold ? 1.0 : 0.0;
  };
  metrics.emplace_back("acc", is_right(answer.log_likelihoods));
  metrics.emplace_back("acc_norm", is_right(by_character));
  metrics.emplace_back("acc_bytes", is_right(by_byte));
}

void add_inputs(const Example& example, const Answer& answer, Json::Object& line,
                Json::Object& metrics) {
  line.emplace_back("loglikelihoods", as_array(answer.log_likelihoods));
  line.emplace_back("gold", example.gold);
  const bool is_right = static_cast<int64_t>(largest(answer.log_likelihoods)) == example.gold;
  metrics.emplace_back("acc", is_right ? 1.0 : 0.0);
}

void add_true_choices(const Example& example, const Answer& answer, Json::Object& line,
                      Json::Object& metrics) {
  Json::Array labels;
  for (const bool is_true : example.is_true) labels.emplace_back(is_true ? 1 : 0);
  line.emplace_back("loglikelihoods", as_array(answer.log_likelihoods));
  line.emplace_back("labels", std::move(labels));
  metrics.emplace_back("acc", share_of_true(answer.log_likelihoods, example.is_true));
}

void add_text(const Task& task, const Example& example, const Answer& answer, Json::Object& line,
              Json::Object& metrics) {
  line.emplace_back("text", answer.text);
  line.emplace_back("target", example.target);
  const auto score = [&](const std::string& name, const std::string& text) {
    metrics.emplace_back(name, is_match(task, text, example.target) ? 1.0 : 0.0);
  };
  if (task.filters.empty()) return score("exact_match", answer.text);
  Json::Object all;
  for (const Filter& filter : task.filters) {
    const std::string found = extracted(filter, answer.text);
    all.emplace_back(filter.name, found);
    score("exact_match," + filter.name, found);
  }
  line.emplace_back("extracted", std::move(all));
}

// preamble: the text before the example's text.
Question question_of(const Task& task, const Example& example, const std::string& preamble,
                     const AskedModel& model, const TokenOptions& options) {
  Question question{.place = example.place};
  const auto add = [&](const std::string& text, const std::string& continuation) {
    question.continuations.push_back(
        encode_pair(model.tokenizer, options, preamble + text, continuation, example.place));
  };
  switch (task.kind) {
    case TaskKind::loglikelihood:
      add(example.text, example.target);
      question.wants_greedy = true;
      break;
    case TaskKind::multiple_choice:
    case TaskKind::true_choices:
      for (const std::string& choice : example.choices)
        add(example.text, task.target_delimiter + choice);
      break;
    case TaskKind::multiple_input:
      for (const std::string& input : example.inputs)
        add(input, task.target_delimiter + example.target);
      break;
    case TaskKind::generation:
      question.prompt = encode_context(model.tokenizer, options, preamble + example.text,
                                       task.max_gen_toks, example.place);
      question.max_tokens = task.max_gen_toks;
      question.until = task.until;
  }
  return question;
}

}  // namespace

void TaskSettings::fields(Fields& f) {
  f.begin_group("tasks");
  f.add(
      "tasks", &files,
      "JSONL files of tasks instead of a data set: multiple choice, continuations and generation, "
      "scored as lm-evaluation-harness does; FORMAT=FILE gives the format of the lines");
  f.add("num-fewshot", &num_fewshot,
        "number of few-shot examples; default from the task's file, else 5 for gsm8k and 0 for "
        "others");
  f.add("limit", &limit, "max examples to evaluate per task; default all");
  f.add("output", &output,
        "JSONL file for the answer to each example; after an interruption the same command "
        "continues");
  f.add_switch("add-bos-token", &add_bos_token, true,
               "add the tokens that the tokenizer puts around each text (BOS, EOS)");
}

void TaskSettings::check() const {
  MG_CHECK(num_fewshot.value_or(0) >= 0, "--num-fewshot is {}; it cannot be negative",
           *num_fewshot);
  MG_CHECK(limit.value_or(1) > 0, "--limit is {}; it must be positive", *limit);
}

void TaskSettings::check_output(const std::vector<std::string>& inputs) const {
  if (!output) return;
  megatron::check_output({*output, "--output", {"an output of eval --tasks", is_task_lines}},
                         inputs);
}

TaskEvaluation::TaskEvaluation(TaskSettings settings) : s_(std::move(settings)) {
  s_.check();
  std::vector<std::string> inputs;
  for (const std::string& file : s_.files) {
    Task task = read_task(file);
    inputs.push_back(task.path);
    if (s_.num_fewshot && task.text_has_shots) {
      log::info("{}: --num-fewshot has no effect, because each text already begins with examples",
                task.name);
    } else if (s_.num_fewshot) {
      task.num_fewshot = *s_.num_fewshot;
    }
    for (const Task& other : tasks_)
      MG_CHECK(other.name != task.name,
               "--tasks: {} and {} are both named {}; rename one in its first line: {{\"task\": "
               "{{\"task\": NAME}}}}",
               other.path, task.path, task.name);
    const Contexts enough(task);
    tasks_.push_back(std::move(task));
  }
  s_.check_output(inputs);
}

size_t TaskEvaluation::size(const Task& task) const {
  return std::min(task.examples.size(), static_cast<size_t>(s_.limit.value_or(INT64_MAX)));
}

int64_t TaskEvaluation::count() const {
  size_t all = 0;
  for (const Task& task : tasks_) all += size(task);
  return static_cast<int64_t>(all);
}

TaskEvaluation::Place TaskEvaluation::place(int64_t number) const {
  auto left = static_cast<size_t>(number);
  for (size_t t = 0; t < tasks_.size(); ++t) {
    if (left < size(tasks_[t])) return {t, left};
    left -= size(tasks_[t]);
  }
  fail("example {} does not exist", number);
}

Json TaskEvaluation::settings_of(const AskedModel& model) const {
  Json settings = model.identity;
  Json::Array files;
  for (const Task& task : tasks_) {
    Json::Object one = {{"task", task.name},
                        {"file", checkpoint::fingerprint(task.path)},
                        {"num_fewshot", task.num_fewshot}};
    if (!task.named_format.empty()) one.emplace_back("format", task.named_format);
    if (!task.shots.empty())
      one.emplace_back("fewshot_file", checkpoint::fingerprint(task.shots_path));
    files.emplace_back(std::move(one));
  }
  settings.set("--tasks", std::move(files));
  settings.set("--limit", s_.limit ? Json(*s_.limit) : Json());
  settings.set("--add-bos-token", s_.add_bos_token);
  return settings;
}

int64_t TaskEvaluation::number_of(const Json& line) const {
  int64_t first = 0;
  for (const Task& task : tasks_) {
    if (line["task"].as_string() == task.name) {
      const int64_t example = line["example"].as_integer();
      MG_CHECK(example >= 0 && example < static_cast<int64_t>(size(task)), "no example");
      for (const Metric& metric : metrics_of(task)) line["metrics"][metric.name].as_number();
      return first + example;
    }
    first += static_cast<int64_t>(size(task));
  }
  fail("there is no task {}", line["task"].as_string());
}

std::string TaskEvaluation::line_of(int64_t number, const Answer& answer) const {
  const Place at = place(number);
  const Task& task = tasks_[at.task];
  const Example& example = task.examples[at.example];
  Json::Object line = {
      {"task", task.name}, {"example", static_cast<int64_t>(at.example)}, {"place", example.place}};
  if (!example.subject.empty()) line.emplace_back("subject", example.subject);
  Json::Object metrics;
  switch (task.kind) {
    case TaskKind::loglikelihood: add_continuation(answer, line, metrics); break;
    case TaskKind::multiple_choice: add_choices(example, answer, line, metrics); break;
    case TaskKind::multiple_input: add_inputs(example, answer, line, metrics); break;
    case TaskKind::true_choices: add_true_choices(example, answer, line, metrics); break;
    case TaskKind::generation: add_text(task, example, answer, line, metrics);
  }
  line.emplace_back("metrics", std::move(metrics));
  return Json(std::move(line)).dump();
}

std::vector<Question> TaskEvaluation::questions(const AskedModel& model,
                                                const ResumableLines& lines,
                                                std::vector<int64_t>& numbers) const {
  const TokenOptions options{.add_bos_token = s_.add_bos_token,
                             .positions = model.stage.model()->context_length()};
  std::vector<Question> all;
  int64_t number = 0;
  for (const Task& task : tasks_) {
    Contexts contexts(task);
    for (size_t e = 0; e < size(task); ++e, ++number) {
      const std::string preamble = contexts.next_preamble();
      if (lines.has(number)) continue;
      all.push_back(question_of(task, task.examples[e], preamble, model, options));
      numbers.push_back(number);
    }
  }
  return all;
}

void TaskEvaluation::ask_all(const AskedModel& model, ResumableLines& lines, bool show) const {
  std::vector<int64_t> numbers;
  const std::vector<Question> asked = questions(model, lines, numbers);
  int64_t requests = 0, done = 0;
  for (const Question& question : asked) requests += static_cast<int64_t>(question.requests());
  std::optional<Progress> progress;
  if (show) progress.emplace("evaluating", requests, "requests");
  ask(
      model.stage, model.runtime, model.tokenizer, model.options, asked,
      [&](size_t question, const Answer& answer) {
        lines.append(numbers[question], line_of(numbers[question], answer));
      },
      [&] {
        if (progress) progress->update(++done);
      });
}

std::vector<TaskResult> TaskEvaluation::run(const AskedModel& model, bool show) const {
  // Without --output the lines are kept in memory.
  ResumableLines lines({.path = s_.output.value_or("/dev/null"),
                        .flag = "--output",
                        .settings = settings_of(model),
                        .count = count(),
                        .number = [this](const Json& line) { return number_of(line); }});
  if (lines.done() > 0 && show)
    log::info("{}.partial: {} of {} examples are done", *s_.output, lines.done(), count());
  ask_all(model, lines, show);
  std::vector<TaskResult> found = results(lines, model.runtime.pool());
  lines.commit();
  return found;
}

std::vector<TaskResult> TaskEvaluation::results(const ResumableLines& lines,
                                                ThreadPool& pool) const {
  std::vector<TaskResult> all;
  int64_t number = 0;
  for (const Task& task : tasks_) {
    const std::vector<Metric> metrics = metrics_of(task);
    std::vector<std::vector<double>> values(metrics.size());
    for (size_t e = 0; e < size(task); ++e) {
      const Json line = Json::parse(lines.line(number++));
      for (size_t m = 0; m < metrics.size(); ++m)
        values[m].push_back(line["metrics"][metrics[m].name].as_number());
    }
    TaskResult& result = all.emplace_back();
    result.task = task.name;
    result.examples = static_cast<int64_t>(size(task));
    for (size_t m = 0; m < metrics.size(); ++m)
      result.scores.push_back({metrics[m], metrics[m].is_perplexity ? perplexity_of(values[m], pool)
                                                                    : mean_of(values[m])});
  }
  return all;
}

bool is_task_lines(std::string_view beginning) {
  return beginning.starts_with(R"({"task": )") &&
         first_line(beginning).find(R"("example": )") != beginning.npos;
}

}  // namespace megatron::tasks
