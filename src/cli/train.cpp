#include <csignal>
#include <filesystem>
#include <vector>

#include "base/log.h"
#include "cli/command.h"
#include "cli/missing_flags.h"
#include "cli/training_command.h"
#include "post_training/tasks.h"
#include "training/settle.h"
#include "training/trainer.h"

namespace megatron::cli {
namespace {

constexpr int kStoppedBySignal = 4;

// SIGHUP, the loss of the terminal, is one of them unless it is ignored, as under nohup.
std::vector<int> exit_signals() {
  std::vector<int> signals = {SIGTERM, SIGINT, SIGUSR1};
  struct sigaction hang_up{};
  sigaction(SIGHUP, nullptr, &hang_up);
  if (hang_up.sa_handler != SIG_IGN) signals.push_back(SIGHUP);
  return signals;
}

void tell_signal(int signal) {
  log::info(
      "{}: the run saves and ends after the current step; another signal, a second or more later, "
      "ends it at once",
      signal_name(signal));
}

// Message that says how to continue a run that ended before its last step.
std::string how_to_go_on(const settings::CheckpointSettings& c) {
  if (!c.save) return "nothing was saved: use --save DIR to keep a run's progress";
  std::error_code error;
  const bool resumes = c.load && std::filesystem::equivalent(*c.save, *c.load, error);
  if (!resumes) return fmt::format("--load {} resumes it", *c.save);
  if (!c.save_optimizer && c.load_optimizer)
    return "the same command with --no-load-optim "
           "resumes it";
  if (c.ckpt_step) return "the same command without --ckpt-step resumes it";
  return "the same command resumes it";
}

int exit_code(const training::TrainResult& result) {
  const std::string next = how_to_go_on(result.settings.checkpoint);
  switch (result.end) {
    case report::EndReason::signal:
      log::info("ended by {} after saving; {}", signal_name(result.signal), next);
      return kStoppedBySignal;
    case report::EndReason::exit_interval:
    case report::EndReason::exit_duration:
      log::info("ended by --exit-{}; {}",
                result.end == report::EndReason::exit_interval ? "interval" : "duration-in-mins",
                next);
      return 0;
    default: return 0;
  }
}

}  // namespace

int run_training(const TrainingCommand& command, settings::TrainSettings& settings, Fields& fields,
                 const Arguments& arguments, const std::function<std::optional<int>()>& before) {
  const std::string name(command.name);
  std::vector<std::string> notes;
  if (const auto code =
          parse_training(fmt::format("megatron {} [flags]", name), std::string(command.description),
                         fields, arguments, notes, {.check = [&] {
                           settings.settle_task();
                           command.complete(settings);
                           require_flags(settings, name, arguments);
                           training::check_settings(settings, false);
                           post_training::make_task(settings.data);
                         }})) {
    return *code;
  }
  settings.settle_task();
  command.complete(settings);
  if (const auto code = before()) return *code;
  // Installed before any thread is created, so that no signal ends the process unnoticed.
  std::optional<SignalWatch> signals;
  if (settings.checkpoint.exit_signal_handler) signals.emplace(exit_signals(), tell_signal);
  const training::TrainHooks hooks{.task = post_training::make_task(settings.data),
                                   .signals = signals ? &*signals : nullptr};
  return with_processes(command.name, fields, [&](comm::Processes& processes) {
    require_flags(settings, name, arguments);
    for (const std::string& note : notes) log::info("{}", note);
    return naming_places(fields,
                         [&] { return exit_code(training::train(settings, hooks, &processes)); });
  });
}

int train(const Arguments& arguments) {
  settings::TrainSettings settings;
  Fields fields = settings.fields();
  return run_training({.name = "train",
                       .description = "Trains a language model. Flags have Megatron-LM's names and "
                                      "meanings; --recipe gives a whole run."},
                      settings, fields, arguments);
}

}  // namespace megatron::cli
