#include "selftest/selftest.h"

#include <fmt/core.h>

#include <cstdio>

#include "base/error.h"
#include "cli/command.h"
#include "training/settings.h"

namespace megatron::cli {

int selftest(const Arguments& arguments) {
  megatron::selftest::SelftestOptions options;
  training::RuntimeSettings runtime;
  std::string fault = "none";
  std::vector<std::string> faults = megatron::selftest::fault_names();
  faults.push_back(fault);
  bool layouts = false, triples = false;
  Fields fields;
  fields.add_switch("layouts", &layouts, true,
                    "the layout matrix instead: a few dozen layouts on up to 16 threads in which "
                    "every pair of values of the parallel flags occurs, each against one rank; "
                    "about a minute");
  fields.add_switch("triples", &triples, true,
                    "with --layouts: every triple of values, some minutes");
  fields.add(
      "fault", &fault, faults,
      "run with a deliberate fault, which a check (with --layouts: a row) must catch: the exit "
      "code is then 1");
  fields.add("filter", &options.filter, "only checks with this text in their names");
  fields.add("threads", &runtime.threads, "CPU threads; default: all cores");
  const auto done = parse("megatron selftest [flags]",
                          "Checks kernels, gradients, models and layouts on this machine.", fields,
                          {}, arguments);
  if (done) return *done;
  runtime.check();
  options.threads = runtime.threads_per_rank();
  MG_CHECK(layouts || !triples, "--triples is of --layouts: give both");
  options.layouts = triples ? 3 : layouts ? 2 : 0;
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
