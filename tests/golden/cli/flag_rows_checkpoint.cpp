#include "golden/cli/flag_effects.h"

namespace megatron::testing {
namespace {

// A run of three steps, planned for five and saved after each step.
const std::string kSaved = "--lr-decay-iters 5 --save {w}/run --save-interval 1 ";
const std::string kGoOn = "--lr-decay-iters 5 --train-iters 5 --load {w}/run ";

std::vector<FlagRow> saving_flags() {
  return {
      {"save", "files", "--save {w}/run"},
      {"save-interval", "files", "--save-interval 1", "--save {w}/run"},
      {"save-keep", "files", "--save-keep 1", kSaved},
      {"save-retain-interval", "files", "--save-retain-interval 2", kSaved},
      {"async-save", "writers", "--async-save", kSaved},
      {"no-save-optim", "files", "--no-save-optim", "--save {w}/run"},
      {"exit-on-save-failure", "error", "--exit-on-save-failure", kSaved + "!disk"},
  };
}

std::vector<FlagRow> loading_flags() {
  const std::string other = "--lr-decay-iters 9 --train-iters 5 --load {w}/run ";
  return {
      {"load", "resumed", kGoOn, "--lr-decay-iters 5 --train-iters 5", "", kSaved},
      {"ckpt-step", "resumed", "--ckpt-step 2", kGoOn, "--ckpt-step 3", kSaved},
      {"exit-on-missing-checkpoint", "error", "--exit-on-missing-checkpoint", "--load {w}/none"},
      {"finetune", "resumed", "--finetune", kGoOn, "", kSaved},
      {"pretrained-checkpoint", "resumed", "--pretrained-checkpoint {w}/run",
       "--lr-decay-iters 5 --load {w}/none", "", kSaved},
      {"ignore-surplus-tensors", "end", "--ignore-surplus-tensors",
       "!num-layers !hidden-size !num-attention-heads !vocab-size --finetune "
       "--model {data}/surplus"},
      {"moe-use-upcycling", "end", "--moe-use-upcycling",
       "--lr-decay-iters 5 --num-experts 4 --load {w}/run", "", kSaved},
      {"moe-upcycling-granularity", "shape", "--moe-upcycling-granularity 2",
       "--lr-decay-iters 5 --num-experts 4 --moe-use-upcycling --load {w}/run", "", kSaved,
       "--lr-decay-iters 5"},
      {"use-checkpoint-args", "end", "--use-checkpoint-args", kGoOn + "--num-layers 5", "", kSaved},
      {"no-load-optim", "loss", "--no-load-optim", kGoOn, "", kSaved},
      {"no-load-rng", "loss", "--no-load-rng",
       kGoOn + "--hidden-dropout 0.1 --seed 9 --dataloader-type single", "", kSaved},
      {"override-opt-param-scheduler", "end", "--override-opt-param-scheduler", other, "", kSaved},
      {"override-opt_param-scheduler", "end", "--override-opt_param-scheduler", other, "", kSaved},
      {"use-checkpoint-opt-param-scheduler", "end", "--use-checkpoint-opt-param-scheduler", other,
       "", kSaved},
      {"use-checkpoint-opt_param-scheduler", "end", "--use-checkpoint-opt_param-scheduler", other,
       "", kSaved},
  };
}

std::vector<FlagRow> ending_flags() {
  return {
      {"exit-interval", "end", "--exit-interval 2"},
      {"exit-duration-in-mins", "end", "--exit-duration-in-mins 1e-9", "",
       "--exit-duration-in-mins 1e9"},
      {"exit-signal-handler", "end", "--exit-signal-handler", "--save {w}/run"},
  };
}

std::vector<FlagRow> log_flags() {
  const std::string writing =
      "!vocab-size --tokenizer-model {vectors}/tokenizers/trained/gpt2/tokenizer.json "
      "--max-position-embeddings 128 --sample-interval 3 --sample-prompt a ";
  const std::string traced = "--profile-step-start 0 --profile-step-end 1 --profile-dir {w}/trace ";
  return {
      {"log-interval", "log", "--log-interval 2", "!log-interval", "--log-interval 100"},
      {"log-jsonl", "files", "--log-jsonl {w}/other"},
      {"tensorboard-dir", "files", "--tensorboard-dir {w}/board"},
      {"tensorboard-log-interval", "tensorboard", "--tensorboard-log-interval 3",
       "--tensorboard-dir {w}/board"},
      {"log-params-norm", "log", "--log-params-norm"},
      {"log-format", "console", "--log-format megatron", "--eval-interval 3 --eval-iters 1"},
      {"log-num-zeros-in-grad", "log", "--log-num-zeros-in-grad"},
      {"log-progress", "files", "--log-progress", "--save {w}/run", "", "", "--seed 1"},
      {"timing-log-level", "log", "--timing-log-level 2"},
      {"timing-log-option", "log", "--timing-log-option all", "--timing-log-level 1", "", "",
       "--timing-log-level 0"},
      {"log-timers-to-tensorboard", "tensorboard", "--log-timers-to-tensorboard",
       "--timing-log-level 1 --tensorboard-dir {w}/board", "", "", "--seed 1"},
      {"wandb-project", "note", "--wandb-project mine"},
      {"wandb-exp-name", "note", "--wandb-exp-name mine"},
      {"wandb-entity", "note", "--wandb-entity me"},
      {"wandb-save-dir", "note", "--wandb-save-dir {w}/wandb"},
      {"sample-interval", "log", "--sample-interval 1", writing, "--sample-interval 3"},
      {"sample-prompt", "log", "--sample-prompt b", writing + "--sample-tokens 4"},
      {"sample-tokens", "log", "--sample-tokens 8", writing},
      {"profile", "trace",
       "--profile --profile-step-start 0 --profile-step-end 1 --profile-dir {w}/trace"},
      {"profile-step-start", "trace", "--profile-step-start 2",
       "--profile --profile-step-end 3 --profile-dir {w}/trace --profile-step-start 1",
       "--profile-step-start 1"},
      {"profile-step-end", "trace", "--profile-step-end 3", traced + "--profile",
       "--profile-step-end 1"},
      {"profile-ranks", "files", "--profile-ranks 1", traced + "--profile --ranks 2", "", "",
       "--ranks 2"},
      {"profile-dir", "files", "--profile-dir {w}/other", traced + "--profile",
       "--profile-dir {w}/trace"},
  };
}

}  // namespace

std::vector<FlagRow> checkpoint_flags() {
  std::vector<FlagRow> all;
  for (auto& rows : {saving_flags(), loading_flags(), ending_flags(), log_flags()})
    all.insert(all.end(), rows.begin(), rows.end());
  return all;
}

}  // namespace megatron::testing
