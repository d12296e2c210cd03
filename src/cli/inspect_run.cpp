#include <fmt/core.h>

#include <cmath>

#include "base/log.h"
#include "cli/inspect_checkpoint.h"
#include "report/figures.h"

namespace megatron::cli {
namespace {

constexpr size_t kRows = 600;

void print_saves(const report::Records& saves) {
  if (saves.seen == 0) return;
  const Json& last = saves.kept.back();
  fmt::print("  {:<16} {}, the last of step {:.0f} in {}\n", "Saves", saves.seen,
             report::number_of(last, "iteration"), report::text_of(last, "path"));
}

}  // namespace

void inspect_run(const std::string& path) {
  const report::RunHistory run = report::read_history(path, kRows);
  for (const std::string& damage : run.damages) log::warning("ignored: {}", damage);
  fmt::print("{}: log of a run, {}\n", run.path, report::status_of(run).text);
  for (const report::Figure& figure : report::figures_of(run)) {
    fmt::print("  {:<16} {}{}\n", figure.label, figure.value,
               figure.detail.empty() ? "" : " (" + figure.detail + ")");
  }
  const double rate = run.steps.last(report::kLearningRate);
  if (std::isfinite(rate)) fmt::print("  {:<16} {:.6E}\n", "Learning rate", rate);
  print_saves(run.saves);
}

}  // namespace megatron::cli
