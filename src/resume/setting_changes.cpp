#include "resume/setting_changes.h"

#include <fmt/core.h>

#include "models/module_precision.h"

namespace megatron::resume {
namespace {

// Appends the settings of `now` whose value in `saved` differs.
void compare(const Json& saved, const Json& now, std::vector<SettingChange>& changes) {
  for (const auto& [flag, value] : now.as_object()) {
    const Json* before = saved.find(flag);
    if (before == nullptr || *before == value || !before->is_string()) continue;
    changes.push_back({flag, before->as_string(), value.as_string()});
  }
}

// The rules that the run read from --te-precision-config-file: "*.mlp.down: bf16; *: e4m3, mxfp8
// scales".
std::string rules_text(const models::Model& model, DType type) {
  const LowPrecisionLayers* const low = model->low_precision();
  if (low == nullptr || low->rules.empty()) return "none";
  std::string text;
  for (const PrecisionRule& rule : low->rules)
    text +=
        fmt::format("{}{}: {}{}{}", text.empty() ? "" : "; ", rule.pattern,
                    rule.formats ? models::formats_text(*rule.formats) : std::string(name(type)),
                    rule.of_quantized ? "" : ", not in place of the flags' recipe",
                    rule.of_others ? ", also where the flags quantize nothing" : "");
  return text;
}

}  // namespace

Json result_settings(const settings::TrainSettings& settings, const models::Model& model) {
  settings::TrainSettings copy = settings;
  Fields fields = copy.fields();
  const models::ModelFacts& facts = model->facts();
  Json::Object object{{"hidden-dropout", fmt::format("{}", facts.hidden_dropout)},
                      {"attention-dropout", fmt::format("{}", facts.attention_dropout)}};
  const auto add = [&](std::string_view flag) {
    const std::string value = fields.find(flag)->get();
    object.emplace_back(std::string(flag), value.empty() ? "none" : value);
  };
  for (const auto* flag :
       {"clip-grad", "calculate-per-token-loss", "no-check-for-nan-in-loss-and-grad",
        "on-non-finite", "global-batch-size", "rampup-batch-size", "step-batch-size-schedule",
        "iterations-to-skip", "fp8-format", "fp4-format"})
    add(flag);
  object.emplace_back("te-precision-config-file", rules_text(model, settings.precision.type()));
  if (facts.experts)
    for (const Field& field : fields.all())
      if (field.beside_model && field.name.starts_with("moe-")) add(field.name);
  // The loss is the mean over micro-batches.
  if (!settings.batch.per_token_loss) add("micro-batch-size");
  if (settings.precision.fp16) {
    for (const auto* flag :
         {"loss-scale", "initial-loss-scale", "min-loss-scale", "loss-scale-window", "hysteresis"})
      add(flag);
  }
  if (!settings.precision.low_precision_flag().empty())
    for (const Field& field : fields.all())
      if (field.name.starts_with("fp8-amax") || field.name == "fp8-recipe" ||
          field.name == "fp8-margin" || field.name == "no-fp8-wgrad" ||
          field.name == "fp4-switch-to-bf16-at" || field.name == "fp8-output-proj" ||
          field.name.ends_with("-bf16"))
        add(field.name);
  return object;
}

std::string SettingChange::text() const {
  return fmt::format("changed: {} from {} to {}", setting, from, to);
}

std::vector<SettingChange> setting_changes(const TrainerState& saved,
                                           const settings::TrainSettings& settings,
                                           const models::Model& model,
                                           const optim::LearningRate& rate,
                                           const optim::WeightDecay& decay) {
  std::vector<SettingChange> changes;
  for (const ScheduleDifference& d : schedule_differences(saved, rate, decay))
    changes.push_back({d.setting, d.saved, d.now});
  const auto add = [&changes](std::string_view what, const std::string& from, std::string_view to) {
    if (from != to) changes.push_back({std::string(what), from, std::string(to)});
  };
  add("optimizer", saved.optimizer, optim::name(settings.optimizer.config.method));
  add("precision", saved.precision, name(settings.precision.type()));
  compare(saved.optimizer_settings, optimizer_settings(settings.optimizer), changes);
  compare(saved.settings, result_settings(settings, model), changes);
  return changes;
}

}  // namespace megatron::resume
