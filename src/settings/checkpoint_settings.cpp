#include "settings/checkpoint_settings.h"

#include "base/error.h"
#include "settings/reading_flags.h"

namespace megatron::settings {

void CheckpointSettings::fields(Fields& f) {
  f.begin_group("checkpoints");
  f.add("save", &save,
        "folder for checkpoints: DIR/iter_0000100 is a Hugging Face model directory with optimizer "
        "state and trainer_state.json")
      .in_short_help();
  f.add("load", &load,
        "folder of checkpoints to resume from; if it has none yet, the run starts from scratch, so "
        "the same command with --save DIR --load DIR both starts and resumes a run. With "
        "--finetune, a Hugging Face directory is accepted, too")
      .in_short_help();
  f.add("save-interval", &save_interval, "steps between checkpoints; the last step is always saved")
      .in_short_help();
  f.add("save-keep", &save_keep,
        "number of checkpoints to keep; older ones are removed when a new one is saved; default "
        "all");
  f.add("save-retain-interval", &save_retain_interval,
        "never remove checkpoints at multiples of this many steps; without --save-keep it "
        "implies --save-keep 1");
  f.add_switch(
      "async-save", &async_save, true,
      "write checkpoints asynchronously; training waits only for an in-memory copy of the data");
  f.add_switch("no-save-optim", &save_optimizer, false,
               "save no optimizer state; a run cannot resume exactly from such checkpoints");
  f.add_switch("exit-on-save-failure", &exit_on_save_failure, true,
               "end the run if a checkpoint cannot be written; by default the run keeps the last "
               "good one and tries again at the next interval");
  f.add("ckpt-step", &ckpt_step, "step of the checkpoint to load; default the latest");
  f.add_switch("exit-on-missing-checkpoint", &exit_on_missing_checkpoint, true,
               "without a checkpoint in --load, end the run instead of starting from scratch");
  f.add_switch("finetune", &finetune, true,
               "start at step 0 with only the weights of --load or --model");
  f.add("pretrained-checkpoint", &pretrained_checkpoint,
        "folder of checkpoints, or Hugging Face directory, whose weights the run starts from (as "
        "--load with --finetune) if --load has no checkpoint yet");
  add_reading_flags(f, reading);
  f.add_switch("moe-use-upcycling", &upcycle, true,
               "start at step 0 from a dense model (--model, --load or --pretrained-checkpoint) "
               "whose feed-forward blocks are copied to initialize --num-experts experts");
  f.add("moe-upcycling-granularity", &upcycling_granularity,
        "with --moe-use-upcycling: number of parts that each feed-forward block is divided into; "
        "each expert starts as a copy of one part")
      .of([this] { return upcycle ? "" : "--moe-use-upcycling is not given"; });
  f.add_switch("use-checkpoint-args", &use_checkpoint_args, true,
               "take the model's shape from the checkpoint of --load, overriding flags");
  f.add_switch("no-load-optim", &load_optimizer, false,
               "reset the optimizer; step, data and schedule continue");
  f.add_switch("no-load-rng", &load_rng, false,
               "seed dropout from --seed instead of the checkpoint's seed");
  for (const auto name : {"override-opt-param-scheduler", "override-opt_param-scheduler"})
    f.add_switch(name, &override_scheduler, true,
                 "the learning rate and weight decay follow this command line, not the checkpoint");
  for (const auto name :
       {"use-checkpoint-opt-param-scheduler", "use-checkpoint-opt_param-scheduler"})
    f.add_switch(name, &use_checkpoint_scheduler, true,
                 "the learning rate and weight decay follow the checkpoint, not this command line");
  f.add("exit-interval", &exit_interval, "save and end after each multiple of this many steps");
  f.add("exit-duration-in-mins", &exit_duration_in_mins,
        "save and end after the first step that ends more than this many minutes after the start "
        "of the run");
  f.add_switch(
      "exit-signal-handler", &exit_signal_handler, true,
      "on SIGTERM, SIGINT, SIGUSR1 or SIGHUP: finish the step, save, and exit with code 4; "
      "another signal, a second or more later, ends the run at once");
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
    MG_CHECK(!*folder || !(*folder)->empty(), "--{} is empty; give the name of a folder", flag);
}

}  // namespace megatron::settings
