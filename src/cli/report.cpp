#include <fmt/core.h>

#include "base/command_output.h"
#include "base/log.h"
#include "base/progress.h"
#include "cli/command.h"
#include "report/page.h"

namespace megatron::cli {

int report(const Arguments& arguments) {
  std::vector<std::string> runs;
  std::string output = "report.html", title;
  Fields fields;
  fields.add("output", &output,
             "the HTML file to write; an earlier report is overwritten, any other file is not");
  fields.add("title", &title, "title of the page; default: the names of the runs");
  if (const auto code = parse("megatron report RUN... [flags]",
                              "Writes runs as one self-contained HTML file: curves, samples, "
                              "configuration, checkpoints.",
                              fields,
                              {{"run",
                                "a --save directory (its log.jsonl), or a JSONL file; the curves "
                                "of several runs are overlaid",
                                &runs, true}},
                              arguments)) {
    return *code;
  }
  const std::vector<report::RunHistory> histories = report::read_histories(runs);
  std::vector<std::string> inputs;
  for (const report::RunHistory& h : histories) inputs.push_back(h.path);
  check_output({output, "--output", {"a report", report::is_report_page}}, inputs);
  for (const report::RunHistory& h : histories) {
    for (const std::string& damage : h.damages) log::warning("ignored: {}", damage);
    if (const int64_t more = h.damaged - static_cast<int64_t>(h.damages.size()); more > 0)
      log::warning("ignored: {}: {} more lines are not records", h.path, more);
  }
  const std::string page = report::report_page(histories, title);
  CommandOutputFile file(output);
  file.write(page);
  file.commit();
  int64_t steps = 0;
  for (const report::RunHistory& h : histories) steps += h.steps.seen();
  fmt::print("{}: {} {}, {} step record{}, {}\n", output, histories.size(),
             histories.size() == 1 ? "run" : "runs", steps, steps == 1 ? "" : "s",
             format_bytes(static_cast<double>(page.size())));
  return 0;
}

}  // namespace megatron::cli
