// The test program. A launcher can start it, too: its tests then run on processes. --scenario=NAME
// runs that scenario instead, and --largest-message=BYTES limits the size of a message.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <optional>

#include "base/signal_watch.h"
#include "dist/comm/scenarios.h"
#include "dist/ranks.h"

namespace {

std::string flag(int argc, char** argv, std::string_view name) {
  std::string value;
  for (const std::string_view argument : std::span(argv, static_cast<size_t>(argc))) {
    if (argument.starts_with(name)) value = argument.substr(name.size());
  }
  return value;
}

int run(int argc, char** argv) {
  const std::string scenario = flag(argc, argv, "--scenario=");
  const std::string largest = flag(argc, argv, "--largest-message=");
  // Receives signals at a chosen point, as the program does.
  std::optional<megatron::SignalWatch> signals;
  const std::array watched = {SIGTERM};
  if (scenario.ends_with("-signals-watched")) signals.emplace(watched);
  megatron::comm::Processes processes(largest.empty() ? int64_t{1} << 30 : std::stoll(largest));
  if (!scenario.empty()) return megatron::testing::run_scenario(scenario, processes);
  megatron::testing::processes() = &processes;
  const int code = RUN_ALL_TESTS();
  if (code != 0) processes.abort(code);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 3;
  }
}
