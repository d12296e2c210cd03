#include <fmt/core.h>

#include <cmath>
#include <optional>

#include "base/command_output.h"
#include "base/log.h"
#include "cli/command.h"
#include "cli/evaluate_tasks.h"
#include "comm/processes.h"
#include "training/device_flag.h"
#include "training/evaluation.h"

namespace megatron::cli {
namespace {

void print_result(const training::EvaluationResult& r) {
  const auto tokens = static_cast<int64_t>(r.loss.tokens);
  if (r.documents.empty()) {
    fmt::print("{}: {} tokens of {} sequences\n", r.what, tokens, r.sequences);
  } else {
    fmt::print("{}: {} tokens of {} documents in {} sequences\n", r.what, tokens,
               r.documents.size(), r.sequences);
  }
  const double loss = r.loss.mean();
  fmt::print("loss {:.4f} nats per token | perplexity {:.2f}\n", loss, r.perplexity());
  if (const auto bits = r.bits_per_byte())
    fmt::print("{:.4f} bits per byte of text ({} bytes)\n", *bits, r.bytes);
  if (r.unigram_entropy > 0) {
    fmt::print("unigram entropy of the same tokens: {:.4f} nats; the loss is {:.1f}% {} it\n",
               r.unigram_entropy, 100 * std::abs(1 - loss / r.unigram_entropy),
               loss < r.unigram_entropy ? "below" : "above");
  }
}

int run_evaluation(training::EvaluationSettings s, bool json, comm::Processes& processes) {
  const training::Evaluation evaluation(std::move(s), processes.lead());
  std::optional<CommandOutputFile> lines;
  if (const auto& file = evaluation.settings().per_document; file && processes.lead())
    lines.emplace(*file);
  training::EvaluationResult result;
  processes.run(evaluation.settings().runtime.rank_count(), [&](comm::Group& world) {
    auto mine = evaluation.run(world);
    if (world.rank() == 0) result = std::move(mine);
  });
  if (!processes.lead()) return 0;
  if (lines) {
    lines->write(training::document_lines(result.documents));
    lines->commit();
  }
  if (json) {
    fmt::print("{}\n", result.json().dump(2));
  } else {
    print_result(result);
  }
  return 0;
}

}  // namespace

int evaluate(const Arguments& arguments) {
  training::EvaluationSettings s;
  bool json = false;
  Fields fields;
  s.fields(fields);
  fields.begin_group("output");
  fields.add_switch("json", &json, true, "print the result as one JSON object");
  fields.common({"json"});
  TaskCommand tasks;
  tasks.fields(fields);
  std::vector<std::string> notes;
  if (const auto code = parse_training(
          "megatron eval --load DIR --data-path PREFIX | --input FILE... | --tasks FILE... [flags]",
          "Loss and perplexity of a model on held-out documents of a data set (--split), or on "
          "text; or its scores on tasks (multiple choice, generation). The numbers do not depend "
          "on the number of ranks.",
          fields, arguments, notes)) {
    return *code;
  }
  return with_processes("eval", fields, [&](comm::Processes& processes) {
    for (const std::string& note : notes) log::info("{}", note);
    return naming_places(fields, [&] {
      tasks.check_flags(fields);
      s.max_length = tasks.max_length();
      training::begin_on_device(s.runtime);
      s.runtime.join(processes);
      return tasks.is_asked() ? tasks.run(s, json, processes) : run_evaluation(s, json, processes);
    });
  });
}

}  // namespace megatron::cli
