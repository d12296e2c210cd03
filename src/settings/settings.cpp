#include "settings/settings.h"

#include "settings/presets.h"

namespace megatron::settings {
namespace {

using Names = std::vector<std::string>;

// Lists the settings of a configuration file that are dropped if a flag of the command line
// conflicts with them.
void replace_by_command_line(Fields& f, const Names& of_shape) {
  const auto either = [&f](const Names& a, const Names& b) {
    f.replace(a, b);
    f.replace(b, a);
  };
  const Names of_iterations = {"lr-decay-iters", "lr-warmup-iters", "lr-wsd-decay-iters"},
              of_samples = {"lr-decay-samples", "lr-warmup-samples", "lr-wsd-decay-samples"};
  either({"train-iters"}, {"train-samples"});
  either({"epochs"}, {"train-iters", "train-samples"});
  f.replace({"train-iters", "epochs"}, of_samples);
  f.replace({"train-samples"}, of_iterations);
  either({"lr-warmup-fraction"}, {"lr-warmup-iters", "lr-warmup-samples"});
  either({"step-batch-size-schedule"},
         {"global-batch-size", "rampup-batch-size", "decrease-batch-size-if-needed"});
  const Names dynamic = {"initial-loss-scale", "min-loss-scale", "loss-scale-window", "hysteresis"};
  either({"bf16"}, {"fp16"});
  either({"fp8-format"}, {"fp4-format"});
  f.replace({"bf16"}, {"loss-scale"});
  f.replace({"bf16"}, dynamic);
  const auto differs = [](const Field& field) { return field.get() != field.initial; };
  f.replace({"loss-scale"}, dynamic, [](const Field& field) { return field.get() != "0"; });
  f.replace(dynamic, {"loss-scale"}, differs);
  f.replace({"on-non-finite"}, {"no-check-for-nan-in-loss-and-grad"}, differs);
  f.replace({"no-check-for-nan-in-loss-and-grad"}, {"on-non-finite"});
  either({"override-opt-param-scheduler", "override-opt_param-scheduler"},
         {"use-checkpoint-opt-param-scheduler", "use-checkpoint-opt_param-scheduler"});
  either({"ddp-bucket-size"}, {"ddp-num-buckets"});
  const Names chunks = {"num-layers-per-virtual-pipeline-stage",
                        "num-virtual-stages-per-pipeline-rank", "pipeline-model-parallel-layout"};
  for (const std::string& flag : chunks)
    for (const std::string& other : chunks)
      if (flag != other) f.replace({flag}, {other});
  f.replace({"recompute-activations"},
            {"recompute-granularity", "recompute-method", "recompute-num-layers"});
  f.replace({"recompute-granularity"}, {"recompute-activations"});
  f.replace({"recompute-granularity"}, {"recompute-method", "recompute-num-layers"},
            [](const Field& field) { return field.get() != "full"; });
  f.replace({"recompute-granularity"}, {"recompute-modules"},
            [](const Field& field) { return field.get() == "full"; });
  either({"use-torch-fsdp2"},
         {"use-megatron-fsdp", "use-custom-fsdp", "data-parallel-sharding-strategy"});
  f.replace({"weight-decay"}, {"start-weight-decay", "end-weight-decay"});
  either({"model"}, {"pretrained-checkpoint"});
  either({"model"}, {"model-config"});
  f.replace({"model"}, of_shape);
  f.replace({"model-config"}, of_shape);
  Names without_tokens = of_shape;  // --vocab-size may exceed the directory's
  std::erase(without_tokens, "vocab-size");
  f.replace(without_tokens, {"model"}, differs);
}

}  // namespace

Fields TrainSettings::fields() {
  Fields f;
  f.begin_group("model");
  f.add("preset", &preset, preset_names(),
        "predefined model; sets shape, sequence length and micro-batch size, which other flags "
        "override");
  f.common({"preset"});
  shape.fields(f);
  Names of_shape;
  for (const Field& field : f.all())
    if (field.name != "preset" && (!field.beside_model || field.name == "vocab-size"))
      of_shape.push_back(field.name);
  for (Field& field : f.all()) {
    if (!field.idle) continue;
    field.idle = [this, idle = std::move(field.idle)] {
      // If false, a directory defines the shape.
      const bool by_flags = !run.model && !run.model_config && !checkpoint.use_checkpoint_args &&
                            !(checkpoint.load && shape.first_shape_flag().empty());
      return by_flags ? idle() : "";
    };
  }
  batch.fields(f);
  precision.fields(f);
  optimizer.fields(f);
  adapters.fields(f);
  parallel.fields(f);
  recompute.fields(f);
  offload.fields(f);
  graphs.fields(f);
  data.fields(f);
  runtime.fields(f);
  run.fields(f);
  checkpoint.fields(f);
  log.fields(f);
  profile.fields(f);
  f.of({"log-progress"}, [this] {
    return checkpoint.save ? "" : "--save is not given, so there is no folder for the file";
  });
  replace_by_command_line(f, of_shape);
  return f;
}

}  // namespace megatron::settings
