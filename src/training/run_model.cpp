#include "training/run_model.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/name_list.h"
#include "device/cuda_plugin.h"
#include "models/module_precision.h"
#include "resume/resume.h"
#include "training/adapter_run.h"
#include "training/settle.h"

namespace megatron::training {
namespace {

// Throws Error if flags that describe the dense model, completely or in part, contradict its
// directory.
void check_dense_flags(const settings::TrainSettings& s, const models::Model& dense,
                       const std::string& path) {
  models::ModelFlags flags = s.shape;
  flags.moe = {};
  flags.model_family.reset();
  MG_CHECK(!flags.vocab_size || *flags.vocab_size == dense->vocab_size(),
           "--vocab-size is {}, but the dense model in {} has {} tokens; leave it out",
           flags.vocab_size.value_or(0), path, dense->vocab_size());
  if (flags.first_shape_flag().empty()) return;
  // The number of positions may follow from --seq-length.
  flags.vocab_size = flags.max_position_embeddings = std::nullopt;
  const auto [own, stated] = models::disagreement(dense, flags);
  const std::string different = resume::differences(own, stated);
  MG_CHECK(
      different.empty(),
      "the dense model described by the flags differs from the one in {}: {}. Leave its flags out: "
      "with --moe-use-upcycling the directory gives the shape of everything except the experts",
      path, different);
}

// True if a directory has the tensors of multi-token prediction that its config.json counts.
// Programs that do not know them drop them and keep the number.
bool has_prediction(const std::string& directory) {
  const checkpoint::ModelDirectory files(directory);
  return std::ranges::any_of(files.tensor_names(), [](const std::string& name) {
    return name.ends_with(".eh_proj.weight") || name.ends_with(".projection.weight");
  });
}

// Why the run does not train multi-token prediction; "": it may.
std::string prediction_obstacle(const settings::TrainSettings& s, const models::Model& model,
                                const Task* task) {
  if (s.adapters.any()) return "adapters are trained on the next token alone";
  if (s.checkpoint.upcycle) return "--moe-use-upcycling makes a model without it";
  if (task != nullptr && task->objective(model) != nullptr)
    return fmt::format("--task {} has an objective of its own", s.data.task);
  return {};
}

// Depths of prediction as flags say, or else as the model's directory has them.
models::Model with_prediction(const models::Model& model, const settings::TrainSettings& s,
                              const ShapeSource& source, const Task* task) {
  const models::PredictionFacts& facts = model->facts().prediction;
  const std::optional<int64_t>& asked = s.shape.mtp_num_layers;
  const std::string obstacle = prediction_obstacle(s, model, task);
  MG_CHECK(obstacle.empty() || asked.value_or(0) == 0,
           "--mtp-num-layers is {}, but {}; leave it out", asked.value_or(0), obstacle);
  models::PredictionChange change{.loss_scale = s.shape.mtp_loss_scaling_factor,
                                  .detached = s.shape.mtp_detach_heads};
  const int64_t known = std::max(facts.depths, facts.left_out);
  const bool reads = !s.run.model || s.checkpoint.finetune;  // the directory's weights
  const bool absent = reads && known > 0 && !asked && obstacle.empty() &&
                      !source.directory.empty() && !has_prediction(source.directory);
  if (absent)
    log::warning(
        "the config.json of '{}' counts {} layers for multi-token prediction "
        "(num_nextn_predict_layers), but the directory has none of their tensors; the run goes on "
        "without them, and its checkpoints count 0",
        source.directory, known);
  if (obstacle.empty() && !absent) change.depths = asked.value_or(known);
  const bool plain = change.loss_scale == models::PredictionChange{}.loss_scale && !change.detached;
  if (change.depths == 0 && asked != 0 && !plain)
    log::info(
        "{} has no effect: the run has no layers of multi-token prediction (--mtp-num-layers)",
        change.detached ? "--mtp-detach-heads" : "--mtp-loss-scaling-factor");
  return change.depths == 0 && known == 0 ? model : model->with({.prediction = change});
}

}  // namespace

models::UpcycledModel upcycled_model(const settings::TrainSettings& s, const ShapeSource& source) {
  const models::Model dense = models::model_from_config_json(source.config, source.path());
  check_dense_flags(s, dense, source.directory);
  return dense->upcycled({.moe = s.shape.moe,
                          .granularity = s.checkpoint.upcycling_granularity,
                          .family = s.shape.model_family});
}

// Tensor cores multiply 8-bit floats from compute capability 8.9 on. Nothing is known of the GPUs
// of a plan made elsewhere. flag: asks for the quantisation.
void check_gpus(const LowPrecisionLayers& low, const settings::TrainSettings& s,
                std::string_view flag) {
  const CudaState& cuda = cuda_state();
  const bool delayed = low.may_use(LowPrecisionRecipe::delayed);
  if (cuda.plugin == nullptr || s.precision.type() == DType::f32 ||
      !(delayed || low.may_use(LowPrecisionRecipe::tensorwise)))
    return;
  const auto gpus = cuda.plugin->devices();
  const auto used = std::min(gpus.size(), static_cast<size_t>(s.runtime.ranks_here()));
  for (const CudaDevice& gpu : gpus.first(used))
    MG_CHECK(gpu.major > 8 || (gpu.major == 8 && gpu.minor >= 9),
             "{}: recipe {} multiplies 8-bit floats, for which {} has no tensor cores: it has "
             "compute capability {}.{}, and they need 8.9. Use a recipe with scales of blocks, "
             "which is computed in {} there, or leave {} out",
             flag, delayed ? "delayed" : "tensorwise", gpu.name, gpu.major, gpu.minor,
             name(s.precision.type()), flag);
}

// Throws Error naming the line of --te-precision-config-file whose pattern fits nothing, or if the
// file alone quantises nothing.
void check_rules(const LowPrecisionLayers& low, const models::Model& model) {
  if (low.rules.empty()) return;
  const auto modules = models::module_precision(model);
  const models::LayerCounts counts = models::layer_counts(model->facts());
  std::vector<std::string> names;
  for (const auto& [weight, formats] : modules)
    names.push_back(weight.substr(0, weight.rfind('.')));
  for (const PrecisionRule& rule : low.rules)
    MG_CHECK(std::ranges::any_of(
                 names, [&](const std::string& name) { return models::fits(rule, name, counts); }),
             "{}: the pattern '{}' fits no module with quantized products. The model's are {}; a "
             "pattern fits a whole name, and docs/low_precision.md has those of Megatron-LM",
             rule.where, rule.pattern, checkpoint::counted(names));
  MG_CHECK(!low.by_rules_alone ||
               std::ranges::any_of(modules,
                                   [](const auto& module) { return module.second.has_value(); }),
           "--te-precision-config-file quantizes nothing: give --fp8-format or --fp4-format, whose "
           "products it changes, or a recipe with override_nonquantized_autocast: true");
}

// Throws Error naming the flag that quantised products cannot be combined with.
void check_low_precision(const settings::TrainSettings& s, const models::Model& model) {
  const auto low = s.precision.low_precision();
  if (!low) return;
  const std::string_view flag = s.precision.low_precision_flag();
  if (s.runtime.device_kind() == DeviceKind::cuda) check_gpus(*low, s, flag);
  MG_CHECK(s.recompute.mlp_chunks <= 1,
           "--mlp-chunks-for-training {} divides the tokens whose scales {} finds; leave one of "
           "them out",
           s.recompute.mlp_chunks, flag);
  MG_CHECK(
      !low->output || model->score_labels() == 0,
      "--fp8-output-proj quantizes an output layer over tokens, and the model of this task has "
      "another head: leave it out");
  const int64_t layers = model->num_layers();
  MG_CHECK(low->by_rules_alone || low->left_out_at_start + low->left_out_at_end < layers,
           "--num-layers-at-start-in-bf16 {} and --num-layers-at-end-in-bf16 {} leave none of {} "
           "layers to {}; lower them",
           low->left_out_at_start, low->left_out_at_end, layers, flag);
  check_rules(*low, model);
}

models::Model model_of_run(const settings::TrainSettings& s, const ShapeSource& source,
                           const corpus::Vocabulary& vocabulary, const Task* task) {
  models::Model model;
  if (!source) {
    models::ModelFlags flags = s.shape;
    flags.vocab_size = vocabulary.size;
    model = models::model_from_flags(flags, *s.batch.seq_length);
  } else {
    model = (s.checkpoint.upcycle ? upcycled_model(s, source).model
                                  : models::model_from_config_json(source.config, source.path()))
                ->with({.hidden_dropout = s.shape.hidden_dropout,
                        .attention_dropout = s.shape.attention_dropout,
                        .router = s.shape.moe.training()});
  }
  model = model->with(
      {.low_precision = s.precision.low_precision(), .mlp_chunks = s.recompute.mlp_chunks});
  MG_CHECK(s.data.pretrains() == (task == nullptr),
           "--task {} is not for this command: use megatron train, or leave --task out",
           s.data.task);
  if (task == nullptr) models::require_language_model(model, "training on next tokens");
  else model = task->model(model, vocabulary);
  model = with_adapter(with_prediction(model, s, source, task), s.adapters);
  MG_CHECK(model->adapter() == nullptr || s.recompute.mlp_chunks <= 1,
           "--mlp-chunks-for-training {} computes feed-forward blocks without their adapters, but "
           "the model has some; leave it out",
           s.recompute.mlp_chunks);
  check_low_precision(s, model);
  MG_CHECK(model->vocab_size() >= vocabulary.size,
           "the model has {} tokens, but the tokenizer has {}; they do not match{}",
           model->vocab_size(), vocabulary.size,
           s.run.model_config ? fmt::format(": give --vocab-size {}", vocabulary.size) : "");
  if (source && vocabulary.tokenizer && !vocabulary.directory.empty())
    report_missing_tokens(vocabulary.tokenizer->vocabulary_size(), model->vocab_size());
  check_length(s.batch, model);
  return model;
}

}  // namespace megatron::training
