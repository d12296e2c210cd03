#include "selftest/selftest.h"

#include <fmt/core.h>

#include <cstdio>
#include <tuple>

#include "base/error.h"
#include "base/text_parts.h"
#include "cli/command.h"
#include "settings/settings.h"

namespace megatron::cli {
namespace {

// "2/9"
std::pair<int, int> part_of(std::string_view text) {
  const size_t slash = text.find('/');
  int part = -1, parts = 0;
  if (slash != std::string_view::npos) {
    part = parse_number<int>(text.substr(0, slash)).value_or(-1);
    parts = parse_number<int>(text.substr(slash + 1)).value_or(0);
  }
  MG_CHECK(part >= 0 && part < parts,
           "--part is '{}'; it must be I/N with whole numbers and 0 <= I < N, such as 0/4", text);
  return {part, parts};
}

}  // namespace

int selftest(const Arguments& arguments) {
  if (!arguments.empty() && arguments.front() == "device")
    return selftest_device(Arguments(arguments.begin() + 1, arguments.end()));
  megatron::selftest::SelftestOptions options;
  settings::RuntimeSettings runtime;
  std::string fault = "none", device = "cpu", part;
  std::vector<std::string> faults = megatron::selftest::fault_names();
  faults.push_back(fault);
  bool layouts = false, triples = false;
  Fields fields;
  fields.add_switch("layouts", &layouts, true,
                    "run the layout matrix instead: a few dozen parallel layouts on up to 16 ranks "
                    "(threads), which together cover every pair of values of the parallel flags, "
                    "each compared with one rank; takes about a minute");
  fields.add_switch("triples", &triples, true,
                    "with --layouts: cover every triple of values; takes several minutes");
  fields.add(
      "fault", &fault, faults,
      "inject a deliberate fault, which a check (with --layouts: a row) must catch: the exit "
      "code is then 1");
  fields.add(
      "device", &device, {"cpu", "cuda"},
      "device whose kernels are checked: the CPU, or a GPU, which the ranks share as threads");
  fields.add_switch(
      "real", &options.real, true,
      "with --device cuda: check kernels at the sizes of real models, compared with the CPU's");
  fields.add(
      "part", &part,
      "I/N: run only part I of the matrix, counted from 0, of N parts with about as many rows "
      "each; \"0/4\" to \"3/4\" together are all rows");
  fields.add("filter", &options.filter,
             "run only checks with this text in their names; =NAME: only that check");
  fields.add_switch("list", &options.list, true,
                    "print the names of the checks without running "
                    "them");
  runtime.add_instruction_set(fields);
  fields.add("threads", &runtime.threads, "CPU threads; default: all cores");
  const auto done = parse("megatron selftest [flags] | megatron selftest device [flags]",
                          "Checks kernels, gradients, models and layouts on this machine. "
                          "`selftest device` checks within a minute whether its GPU works.",
                          fields, {}, arguments);
  if (done) return *done;
  runtime.check();
  runtime.limit_instruction_set();
  options.threads = runtime.threads_per_rank();
  MG_CHECK(layouts || !triples, "--triples needs --layouts");
  options.layouts = triples ? 3 : layouts ? 2 : 0;
  options.device = device == "cuda" ? DeviceKind::cuda : DeviceKind::cpu;
  if (!part.empty()) {
    MG_CHECK(layouts, "--part needs --layouts");
    std::tie(options.part, options.parts) = part_of(part);
  }
  if (fault != "none") options.fault = fault;
  const auto summary = megatron::selftest::run(options, [](std::string_view line) {
    fmt::print("{}", line);
    std::fflush(stdout);
  });
  if (!options.fault.empty()) {
    fmt::print("fault {}: {}\n", fault, summary.failed.empty() ? "not caught" : "caught by");
    for (const std::string& name : summary.failed) fmt::print("  {}\n", name);
  }
  return summary.failed.empty() ? 0 : 1;
}

}  // namespace megatron::cli
