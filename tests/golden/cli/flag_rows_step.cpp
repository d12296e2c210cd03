#include <thread>

#include "base/machine_limits.h"
#include "golden/cli/flag_effects.h"

namespace megatron::testing {
namespace {

std::vector<FlagRow> batch_flags() {
  const std::string uneven =
      "!mock-data --data-path {data}/a --split 1 --eod-mask-loss --global-batch-size 4";
  return {
      {"seq-length", "loss", "--seq-length 8"},
      {"decoder-seq-length", "loss", "--decoder-seq-length 8",
       "--task span-corruption --mask-prob 0.6", "--decoder-seq-length 16"},
      {"micro-batch-size", "memory", "--micro-batch-size 2"},
      {"global-batch-size", "batch", "--global-batch-size 4", "!global-batch-size",
       "--global-batch-size 1"},
      {"train-iters", "batch", "--train-iters 4"},
      {"extend-to-iters", "batch", "--extend-to-iters 5", "--lr-decay-style constant"},
      {"train-samples", "batch", "!train-iters --train-samples 8", "",
       "!train-iters --train-samples 6"},
      {"step-batch-size-schedule", "batch",
       "!global-batch-size --step-batch-size-schedule 0:1,32:2", "",
       "!global-batch-size --step-batch-size-schedule 0:2"},
      {"rampup-batch-size", "batch", "--rampup-batch-size 1 1 2", "", "--rampup-batch-size 2 1 0"},
      {"decrease-batch-size-if-needed", "end", "--decrease-batch-size-if-needed",
       "--ranks 2 --global-batch-size 3"},
      {"calculate-per-token-loss", "loss", "--calculate-per-token-loss",
       uneven + " --no-calculate-per-token-loss", "--calculate-per-token-loss=false"},
      {"no-calculate-per-token-loss", "loss", "--no-calculate-per-token-loss", uneven},
      {"recompute-activations", "memory", "--recompute-activations"},
      {"recompute-granularity", "memory", "--recompute-granularity full"},
  };
}

std::vector<FlagRow> schedule_flags() {
  const std::string samples = "!train-iters --train-samples 6";
  const std::string constant = "--lr-decay-style constant";
  const std::string wsd = "--lr-decay-style WSD --lr-wsd-decay-iters 2";
  const std::string growing = "--weight-decay 0.1 --weight-decay-incr-style linear";
  return {
      {"lr", "loss", "--lr 5e-3"},
      {"min-lr", "schedule", "--min-lr 1e-3", "", "", "", constant},
      {"lr-decay-style", "schedule", "--lr-decay-style cosine"},
      {"lr-decay-iters", "schedule", "--lr-decay-iters 10", "", "--lr-decay-iters 3", "", constant},
      {"lr-decay-samples", "schedule", "--lr-decay-samples 20", samples, "--lr-decay-samples 6", "",
       samples + " " + constant},
      {"lr-warmup-iters", "schedule", "--lr-warmup-iters 1"},
      {"lr-warmup-samples", "schedule", "--lr-warmup-samples 3", samples},
      {"lr-warmup-fraction", "schedule", "--lr-warmup-fraction 0.5", "", "--lr-warmup-fraction 0"},
      {"lr-warmup-init", "schedule", "--lr-warmup-init 1e-3", "--lr-warmup-iters 2"},
      {"weight-decay", "schedule", "--weight-decay 0.1", "", "", "",
       "--start-weight-decay 0.2 --end-weight-decay 0.2"},
      {"start-weight-decay", "schedule", "--start-weight-decay 0", growing,
       "--start-weight-decay 0.1"},
      {"end-weight-decay", "schedule", "--end-weight-decay 0.2", growing, "--end-weight-decay 0.1"},
      {"weight-decay-incr-style", "schedule", "--weight-decay-incr-style cosine",
       growing + " --start-weight-decay 0", "--weight-decay-incr-style linear"},
      {"lr-wsd-decay-style", "schedule", "--lr-wsd-decay-style linear", wsd},
      {"lr-wsd-decay-iters", "schedule", "--lr-wsd-decay-iters 1", wsd, "--lr-wsd-decay-iters 2"},
      {"lr-wsd-decay-samples", "schedule", "--lr-wsd-decay-samples 2",
       samples + " --lr-decay-style WSD --lr-wsd-decay-samples 4", "--lr-wsd-decay-samples 4", "",
       samples},
      {"decoupled-lr", "loss", "--decoupled-lr 1e-3", "", "--decoupled-lr 1e-2"},
      {"decoupled-min-lr", "loss", "--decoupled-min-lr 5e-3", "--decoupled-lr 1e-2",
       "--decoupled-min-lr 0", "", "--decoupled-lr 1e-2 " + constant},
  };
}

std::vector<FlagRow> optimizer_flags() {
  const std::string muon = "--optimizer muon";
  return {
      {"optimizer", "loss", "--optimizer sgd"},
      {"clip-grad", "loss", "--clip-grad 0.01"},
      {"freeze", "loss", "--freeze *mlp*"},
      {"adam-beta1", "loss", "--adam-beta1 0.5", "", "", "", "--optimizer sgd"},
      {"adam-beta2", "loss", "--adam-beta2 0.9", "", "", "", "--optimizer sgd"},
      {"adam-eps", "loss", "--adam-eps 1e-3", "", "", "", "--optimizer lion"},
      {"sgd-momentum", "loss", "--sgd-momentum 0.5", "--optimizer sgd"},
      {"exp-avg-dtype", "loss", "--exp-avg-dtype bf16"},
      {"exp-avg-sq-dtype", "loss", "--exp-avg-sq-dtype bf16"},
      {"lion-beta1", "loss", "--lion-beta1 0.5", "--optimizer lion"},
      {"lion-beta2", "loss", "--lion-beta2 0.2", "--optimizer lion --train-iters 6"},
      {"muon-momentum", "loss", "--muon-momentum 0.5", muon},
      {"muon-nesterov", "loss", "--muon-nesterov", muon},
      {"muon-no-split-qkv", "loss", "--muon-no-split-qkv", muon},
      {"muon-scale-mode", "loss", "--muon-scale-mode unit_rms_norm", muon},
      {"muon-extra-scale-factor", "loss", "--muon-extra-scale-factor 0.5", muon},
      {"muon-coefficient-type", "loss", "--muon-coefficient-type simple", muon},
      {"muon-num-ns-steps", "loss", "--muon-num-ns-steps 2", muon},
      {"muon-fp32-matmul-prec", "loss", "--muon-fp32-matmul-prec highest", muon},
      {"muon-scalar-optimizer", "loss", "--muon-scalar-optimizer lion", muon},
  };
}

// The default loss scale of 2^32 overflows in every step of such a small run.
std::vector<FlagRow> precision_flags() {
  const std::string plain = "--bf16 --num-layers 3 --hidden-size 32";
  const std::string delayed = plain + " --fp8-format e4m3";
  const std::string fp8 = delayed + " --fp8-recipe tensorwise";
  const std::string fp4 = plain + " --fp4-format e2m1";
  const std::string ends = fp8 + " --first-last-layers-bf16";
  const std::string diverging = "--lr 1e38 --train-iters 4";
  return {
      {"loss-scale", "log", "--loss-scale 128", "--fp16", "--loss-scale 0"},
      {"initial-loss-scale", "log", "--initial-loss-scale 65536", "--fp16"},
      {"min-loss-scale", "log", "--min-loss-scale 4294967296", "--fp16"},
      {"loss-scale-window", "log", "--loss-scale-window 1", "--fp16 --initial-loss-scale 1024"},
      {"hysteresis", "log", "--hysteresis 1", "--fp16"},
      {"fp8-format", "loss", "--fp8-format hybrid", fp8},
      {"fp8-recipe", "loss", "--fp8-recipe mxfp8", delayed, "", "", plain},
      {"fp8-margin", "loss", "--fp8-margin 3", delayed, "", "", fp8},
      {"fp8-amax-history-len", "loss", "--fp8-amax-history-len 8",
       delayed + " --fp8-amax-compute-algo max", "", "", fp8},
      {"fp8-amax-compute-algo", "loss", "--fp8-amax-compute-algo max",
       delayed + " --fp8-amax-history-len 8", "", "", fp8},
      {"no-fp8-wgrad", "loss", "--no-fp8-wgrad", fp8, "", "", plain},
      {"disable-fp8-wgrad", "loss", "--disable-fp8-wgrad", fp8, "", "", plain},
      {"fp8-output-proj", "loss", "--fp8-output-proj", delayed + " --fp8-recipe mxfp8", "", "",
       plain},
      {"fp4-format", "loss", "--fp4-format e2m1", plain},
      {"fp4-switch-to-bf16-at", "loss", "--fp4-switch-to-bf16-at 2", fp4, "", "", plain},
      {"te-precision-config-file", "loss", "--te-precision-config-file {data}/precision.yaml", fp8},
      {"first-last-layers-bf16", "loss", "--first-last-layers-bf16", fp8, "", "", plain},
      {"num-layers-at-start-in-bf16", "loss", "--num-layers-at-start-in-bf16 0", ends},
      {"num-layers-at-end-in-bf16", "loss", "--num-layers-at-end-in-bf16 0", ends},
      {"no-check-for-nan-in-loss-and-grad", "end", "--no-check-for-nan-in-loss-and-grad",
       diverging},
      {"on-non-finite", "end", "--on-non-finite skip", diverging},
  };
}

std::vector<FlagRow> machine_flags() {
  const auto cores = std::to_string(available_processors());
  return {
      {"ranks", "log", "--ranks 2", "!ranks", "--ranks 1"},
      {"measure-peak", "console", "--measure-peak"},
      {"threads", "log", "--threads 3", "!threads", "--threads " + cores},
      {"device", "log", "--device reference"},
  };
}

}  // namespace

std::vector<FlagRow> step_flags() {
  std::vector<FlagRow> all;
  for (auto& rows :
       {batch_flags(), schedule_flags(), optimizer_flags(), precision_flags(), machine_flags()})
    all.insert(all.end(), rows.begin(), rows.end());
  return all;
}

}  // namespace megatron::testing
