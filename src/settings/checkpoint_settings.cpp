#include "settings/checkpoint_settings.h"

#include "base/error.h"

namespace megatron::settings {

void CheckpointSettings::fields(Fields& f) {
  f.begin_group("checkpoints");
  f.add("save", &save,
        "folder for checkpoints: DIR/iter_0000100 is a Hugging Face model directory with optimizer "
        "state and trainer_state.json");
  f.add(
      "load", &load,
      "folder of checkpoints to go on from; where it has none yet, the run starts from scratch, so "
      "that one command with --save DIR --load DIR starts and resumes. With --finetune also a "
      "Hugging Face directory");
  f.add("save-interval", &save_interval,
        "steps between checkpoints; the last step is always saved");
  f.add("save-keep", &save_keep,
        "checkpoints to keep; older ones are removed when a new one is saved; default all");
  f.add("save-retain-interval", &save_retain_interval,
        "checkpoints at multiples of this many steps are never removed; alone it means --save-keep "
        "1");
  f.add_switch("async-save", &async_save, true,
               "checkpoints are written while training goes on; a step waits only for a copy in "
               "memory of what its rank writes");
  f.add_switch("no-save-optim", &save_optimizer, false,
               "checkpoints hold no optimizer state; a run cannot resume from them exactly");
  f.add_switch(
      "exit-on-save-failure", &exit_on_save_failure, true,
      "a checkpoint that cannot be written ends the run; else it goes on with the last good "
      "one, and tries again at the next interval");
  f.add("ckpt-step", &ckpt_step, "step of the checkpoint to load; default the latest");
  f.add_switch("exit-on-missing-checkpoint", &exit_on_missing_checkpoint, true,
               "without a checkpoint in --load the run ends instead of starting from scratch");
  f.add_switch("finetune", &finetune, true,
               "begin at step 0 with the weights alone of --load or --model");
  f.add("pretrained-checkpoint", &pretrained_checkpoint,
        "folder of checkpoints, or Hugging Face directory, whose weights the run begins with (as "
        "--load "
        "with --finetune) while --load has no checkpoint yet");
  f.add_switch("use-checkpoint-args", &use_checkpoint_args, true,
               "the checkpoint of --load gives the model's shape, whatever flags say of it");
  f.add_switch("no-load-optim", &load_optimizer, false,
               "the optimizer begins anew; step, data and schedule go on");
  f.add_switch("no-load-rng", &load_rng, false,
               "dropout draws by --seed instead of the checkpoint's seed");
  for (const auto name : {"override-opt-param-scheduler", "override-opt_param-scheduler"})
    f.add_switch(
        name, &override_scheduler, true,
        "the learning rate and weight decay follow this command line, whatever the checkpoint "
        "says");
  for (const auto name :
       {"use-checkpoint-opt-param-scheduler", "use-checkpoint-opt_param-scheduler"})
    f.add_switch(name, &use_checkpoint_scheduler, true,
                 "they follow the checkpoint, whatever this command line says");
  f.common({"save", "load", "save-interval"});
  f.add("exit-interval", &exit_interval, "save and end after each multiple of this many steps");
  f.add("exit-duration-in-mins", &exit_duration_in_mins,
        "save and end after the step in which the run becomes this old");
  f.add_switch("exit-signal-handler", &exit_signal_handler, true,
               "at SIGTERM, SIGINT or SIGUSR1: finish the step, save, and end with exit code 4; a "
               "second signal ends at once");
}

void CheckpointSettings::check() const {
  const auto positive = [](const auto& value, std::string_view flag) {
    MG_CHECK(!value || *value > 0, "--{} is {}; it must be positive", flag, *value);
  };
  positive(save_interval, "save-interval");
  positive(save_keep, "save-keep");
  positive(save_retain_interval, "save-retain-interval");
  positive(exit_interval, "exit-interval");
  positive(exit_duration_in_mins, "exit-duration-in-mins");
  MG_CHECK(!ckpt_step || *ckpt_step >= 0, "--ckpt-step is {}; it cannot be negative", *ckpt_step);
  for (const auto& [folder, flag] : {std::pair{&save, "save"}, {&load, "load"}})
    MG_CHECK(!*folder || !(*folder)->empty(), "--{} is empty; the name of a folder is wanted",
             flag);
  const auto needs_save = [this](bool given, std::string_view flag) {
    MG_CHECK(!given || save, "--{} needs --save DIR: where to write checkpoints", flag);
  };
  needs_save(save_interval.has_value(), "save-interval");
  needs_save(save_keep.has_value(), "save-keep");
  needs_save(save_retain_interval.has_value(), "save-retain-interval");
  needs_save(async_save, "async-save");
  needs_save(exit_on_save_failure, "exit-on-save-failure");
  needs_save(exit_signal_handler, "exit-signal-handler");
  const auto needs_load = [this](bool given, std::string_view flag) {
    MG_CHECK(!given || load, "--{} needs --load DIR: where the checkpoints lie", flag);
  };
  needs_load(ckpt_step.has_value(), "ckpt-step");
  needs_load(exit_on_missing_checkpoint, "exit-on-missing-checkpoint");
  needs_load(use_checkpoint_args, "use-checkpoint-args");
  needs_load(!load_optimizer, "no-load-optim");
  needs_load(!load_rng, "no-load-rng");
  needs_load(override_scheduler, "override-opt-param-scheduler");
  needs_load(use_checkpoint_scheduler, "use-checkpoint-opt-param-scheduler");
  MG_CHECK(
      !override_scheduler || !use_checkpoint_scheduler,
      "--override-opt-param-scheduler and --use-checkpoint-opt-param-scheduler contradict each "
      "other; drop one");
}

}  // namespace megatron::settings
