#include "training/plan/precision_text.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <vector>

#include "base/dtype.h"
#include "kernels/coded_product.h"
#include "models/module_precision.h"
#include "nn/coded_products.h"

namespace megatron::training {
namespace {

// "0-2,5" for 0, 1, 2 and 5.
std::string runs_text(std::vector<int64_t> numbers) {
  std::ranges::sort(numbers);
  std::string text;
  for (size_t first = 0; first < numbers.size();) {
    size_t last = first;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", numbers[first]);
    if (last > first) text += fmt::format("-{}", numbers[last]);
    first = last + 1;
  }
  return text;
}

// Modules with the same products: "layers.{0-11}.mlp.up, layers.{2}.mlp.down".
std::string modules_text(const std::vector<std::string>& weights) {
  std::map<std::string, std::vector<int64_t>> layers;  // by the rest of the name
  for (const std::string& weight : weights) {
    const size_t begin = weight.find('.') + 1, dot = weight.find('.', begin),
                 end = weight.rfind('.');
    int64_t layer = 0;
    std::from_chars(weight.data() + begin, weight.data() + dot, layer);
    layers[weight.substr(dot, end - dot)].push_back(layer);
  }
  std::vector<std::string> texts;
  for (const auto& [rest, numbers] : layers)
    texts.push_back(fmt::format("layers.{{{}}}{}", runs_text(numbers), rest));
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string text_by_module(const LowPrecisionLayers& low, const models::Model& model, DType type) {
  std::map<std::string, std::vector<std::string>> quantized;  // weights, by formats
  std::vector<std::string> others;
  for (const auto& [weight, formats] : models::module_precision(model))
    (formats ? quantized[models::formats_text(*formats)] : others).push_back(weight);
  std::string text;
  if (low.output) text += fmt::format("{}: output layer; ", models::formats_text(low.formats));
  for (const auto& [formats, weights] : quantized)
    text += fmt::format("{}: {}; ", formats, modules_text(weights));
  text += fmt::format("in {}: ", name(type));
  return others.empty() ? text : text + modules_text(others) + ", ";
}

std::string text_by_layer(const LowPrecisionLayers& low, const models::Model& model, DType type) {
  const int64_t layers = model->num_layers();
  return fmt::format("{}; products of linear layers in layers {} to {} of {}{}; in {}: ",
                     models::formats_text(low.formats), low.left_out_at_start + 1,
                     layers - low.left_out_at_end, layers,
                     low.output ? " and of the output layer" : "", name(type));
}

// The quantised products that a GPU computes in the type of the model.
std::string gpu_text(const LowPrecisionLayers& low, const settings::TrainSettings& run,
                     const models::ModelFacts& facts) {
  using enum LowPrecisionRecipe;
  const DType type = run.precision.type();
  const int64_t tokens =
      *run.batch.micro_batch_size * run.batch.labelled_length() / run.parallel.context_parallel;
  std::vector<std::string> others;  // products that are not of codes
  bool some = false, fp4 = false;
  for (const LowPrecisionRecipe recipe : {tensorwise, delayed, blockwise, mxfp8, nvfp4}) {
    if (!low.may_use(recipe)) continue;
    const bool coded = type != DType::f32 && nn::multiplies_codes(recipe);
    some = some || coded;
    fp4 = fp4 || (coded && recipe == nvfp4);
    if (!coded) others.push_back(fmt::format("by the recipe {}", name(recipe)));
  }
  const std::string units = fmt::format(" run on the GPU's {} units", name(type));
  if (!some) return "; quantized products" + units;
  if (tokens % kernels::kCodedStep != 0)
    return fmt::format(
        "; quantized products{}, since a rank's {} tokens of a micro-batch are no multiple of {}",
        units, tokens, kernels::kCodedStep);
  const int64_t step = kernels::depth_step(LowFormat::e2m1);
  if (fp4 && tokens % step != 0)
    others.push_back(fmt::format("of fp4 weight gradients (sums over {} tokens, no multiple of {})",
                                 tokens, step));
  if (facts.experts) others.emplace_back("of experts");
  if (low.output) others.emplace_back("of logits and their gradient");
  if (others.empty()) return {};
  return fmt::format("; quantized products {}{}", fmt::join(others, " and "), units);
}

// How ranks gather the weights with --fp8-param-gather, --fp4-param-gather or both.
std::string gather_text(const LowPrecisionLayers& low, const settings::TrainSettings& run) {
  using enum LowPrecisionRecipe;
  const settings::PrecisionSettings& s = run.precision;
  const std::string_view type = name(s.type()),
                         flag = s.fp8_param_gather ? "--fp8-param-gather" : "--fp4-param-gather";
  if (run.parallel.sharding() == parallel::Sharding::none)
    return fmt::format("; no weights are gathered ({} needs --use-distributed-optimizer)", flag);
  if (run.runtime.rank_count() * run.parallel.context_parallel ==
      run.parallel.model_ranks() * run.parallel.optimizer_instances)
    return fmt::format("; no weights are gathered, since one rank has all of them ({})", flag);
  std::vector<std::string> coded;
  if (s.fp8_param_gather)
    for (const LowPrecisionRecipe recipe : {delayed, tensorwise, blockwise})
      if (low.may_use(recipe)) coded.emplace_back(name(recipe));
  if (s.fp4_param_gather && low.may_use(nvfp4)) coded.emplace_back(name(nvfp4));
  if (coded.empty())
    return fmt::format("; weights are gathered in {}, since {} ({})", type,
                       s.fp8_param_gather ? "none has codes of 8 bits that all its products share"
                                          : "no product is in fp4",
                       flag);
  return fmt::format("; trained weights of {} products are gathered as codes, others in {}",
                     fmt::join(coded, ", "), type);
}

}  // namespace

std::string precision_text(const settings::TrainSettings& run, const models::Model& model) {
  const settings::PrecisionSettings& s = run.precision;
  const auto low = s.low_precision();
  if (!low) return {};
  std::string text;
  if (s.fp4_switch_to_bf16_at) text += fmt::format("until step {}: ", *s.fp4_switch_to_bf16_at - 1);
  const bool by_module = !low->rules.empty();
  text += by_module ? text_by_module(*low, model, s.type()) : text_by_layer(*low, model, s.type());
  text += fmt::format("embedding, {}norms, attention", low->output ? "" : "output layer, ");
  const models::ModelFacts& facts = model->facts();
  if (facts.experts) text += ", router";
  if (facts.shared_blocks > 0) text += ", blocks that layers share";
  if (facts.prediction.depths > 0) text += ", layers of multi-token prediction";
  if (s.fp8_param_gather || s.fp4_param_gather) text += gather_text(*low, run);
  if (run.runtime.device_kind() == DeviceKind::cuda) text += gpu_text(*low, run, facts);
  return text;
}

}  // namespace megatron::training
