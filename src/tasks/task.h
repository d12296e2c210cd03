// A task of lm-evaluation-harness: its examples, prompts and metrics. Names are those of the
// harness' task files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"

namespace megatron::tasks {

enum class TaskKind {
  loglikelihood,    // probability of a continuation, and whether it is the greedy one
  multiple_choice,  // which of several continuations is the most likely
  multiple_input,   // which of several texts makes a continuation most likely
  true_choices,     // share of the probability that belongs to the true continuations
  generation        // whether the generated text contains the answer
};

struct Example {
  std::string place;    // "FILE line 3"
  std::string subject;  // inserted in its description; "": none
  std::string text;     // what the model reads, without description and few-shot examples
  std::vector<std::string> choices;  // for multiple_choice and true_choices
  std::vector<std::string> inputs;   // for multiple_input; `text` is the right one
  int64_t gold = 0;                  // index of the right choice or input
  std::vector<bool> is_true;         // for each choice of true_choices
  std::string target;                // for the other kinds
  Json source;                       // the line

  const std::string& answer() const {
    return choices.empty() ? target : choices[static_cast<size_t>(gold)];
  }
};

// Selects a part of a generated text: of all matches of `pattern` the one with index group_select
// (-1: the last); of a match its first non-empty group, if the pattern has groups.
struct Filter {
  std::string name, pattern;
  int64_t group_select = 0;
};

enum class Sampler {
  first_n,  // the first ones
  random    // drawn for each example by random.Random(1234).sample, as in lm-evaluation-harness
};

struct Task {
  std::string name, path;
  std::string named_format;  // format of the lines, if given before the file's name
  TaskKind kind = TaskKind::multiple_choice;
  std::vector<Example> examples;

  // Examples with answers that precede each example: from `shots` or, if that is empty, from the
  // others of `examples`. An example with a subject gets those of its subject.
  std::vector<Example> shots;
  std::string shots_path;  // file with the shots
  int64_t num_fewshot = 0;
  Sampler sampler = Sampler::random;
  bool text_has_shots = false;  // texts already contain examples, so --num-fewshot is ignored
  // Precedes everything; none: description_of() the subject.
  std::optional<std::string> description;
  std::string target_delimiter = " ";      // between text and answer
  std::string fewshot_delimiter = "\n\n";  // after an answer

  // Generation tasks only.
  std::vector<std::string> until;              // texts that end it
  int64_t max_gen_toks = 256;                  // most tokens
  std::vector<Filter> filters;                 // none: the whole text is compared
  std::vector<std::string> regexes_to_ignore;  // matches are ignored in comparisons
  bool ignore_case = false;

  std::string description_of(const Example& example) const;
};

// Metrics of a task, in the order of its table.
struct Metric {
  std::string name;
  bool is_perplexity = false;  // exp of minus the mean; else the mean
};
std::vector<Metric> metrics_of(const Task& task);

}  // namespace megatron::tasks
