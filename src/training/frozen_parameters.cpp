#include "training/frozen_parameters.h"

#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "checkpoint/name_list.h"
#include "plan/figures.h"

namespace megatron::training {
namespace {

bool fits(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

// Length of the longest common beginning and end.
size_t likeness(const std::string& a, const std::string& b) {
  const size_t least = std::min(a.size(), b.size());
  size_t begin = 0, end = 0;
  while (begin < least && a[begin] == b[begin]) ++begin;
  while (end < least - begin && a[a.size() - 1 - end] == b[b.size() - 1 - end]) ++end;
  return begin + end;
}

[[noreturn]] void fits_nothing(const std::string& pattern, std::vector<std::string> names,
                               const models::Model& model) {
  constexpr size_t kNear = 3;
  const auto tied = model->tied_output();
  MG_CHECK(!tied || !fits(pattern, tied->output),
           "--freeze '{}' fits {}, but the model's output layer is its table of tokens: freeze {}",
           pattern, tied->output, tied->table);
  std::ranges::stable_sort(names, std::greater{},
                           [&](const std::string& name) { return likeness(pattern, name); });
  names.resize(std::min(names.size(), kNear));
  throw Error(fmt::format(
      "--freeze '{}' matches no tensor of the model; the most similar names are {}. A pattern must "
      "match the whole name: * stands for any text",
      pattern, fmt::join(names, ", ")));
}

std::unique_ptr<models::Stage> shape_of(const models::Model& model, const parallel::ModelPart& part,
                                        Runtime& shapes_only) {
  return model.build(shapes_only, DType::f32, 0, part, {});
}

int64_t elements(const parallel::ParameterSpec& placed) {
  int64_t sum = 0;
  for (const parallel::CanonicalTensor& part : placed.placement.tensors)
    sum += part.global.elements();
  return sum;
}

}  // namespace

FrozenParameters::FrozenParameters(const models::Model& model,
                                   std::span<const std::string> patterns) {
  Runtime shapes_only({DeviceKind::meta, 0}, 1);
  const parallel::ModelPart undivided{.layers = model->num_layers()};
  const auto whole = shape_of(model, undivided, shapes_only);
  if (!any(model, patterns)) return;
  if (model->adapter() != nullptr)
    for (const parallel::ParameterSpec* placed : models::tensors_of(*whole))
      if (!placed->parameter.trainable) names_.insert(placed->parameter.name);
  std::vector<bool> fitted(patterns.size());
  std::vector<std::string> all;
  for (const parallel::ParameterSpec* placed : models::tensors_of(*whole)) {
    std::vector<std::string> frozen, kept;
    for (const parallel::CanonicalTensor& part : placed->placement.tensors) {
      bool fits_any = false;
      for (size_t i = 0; i < patterns.size(); ++i) {
        if (!fits(patterns[i], part.name)) continue;
        fits_any = fitted[i] = true;
      }
      (fits_any ? frozen : kept).push_back(part.name);
      all.push_back(part.name);
    }
    MG_CHECK(frozen.empty() || kept.empty(),
             "--freeze matches {}, but not {}, which are parts of the same matrix of the model: "
             "freeze all of them or none",
             checkpoint::counted(frozen), checkpoint::counted(kept));
    if (!frozen.empty()) names_.insert(placed->parameter.name);
  }
  for (size_t i = 0; i < patterns.size(); ++i)
    if (!fitted[i]) fits_nothing(patterns[i], all, model);
  for (const parallel::ParameterSpec* placed : whole->parameters()) {
    all_ += elements(*placed);
    if (contains(*placed)) frozen_ += elements(*placed);
  }
  MG_CHECK(
      patterns.empty() || trained() > 0,
      "--freeze {} matches all parameters of the model, so that nothing would be trained: leave "
      "some out",
      fmt::join(patterns, " "));
}

std::string FrozenParameters::text() const {
  return fmt::format("{} of {} parameters are trained", plan::count_text(trained()),
                     plan::count_text(all()));
}

void FrozenParameters::apply(const models::Stage& stage) const {
  for (parallel::ParameterSpec* placed : stage.parameters())
    if (contains(*placed)) placed->parameter.trainable = false;
  for (nn::ModuleState* state : stage.states())
    if (contains(state->placed)) state->update = nullptr;
}

int FrozenParameters::first_trained(const models::Model& model,
                                    const parallel::PipelineShape& shape,
                                    const parallel::LayerPlacement& placement) const {
  if (names_.empty() || shape.stages == 1) return 0;
  Runtime shapes_only({DeviceKind::meta, 0}, 1);
  int virtual_stage = 0;
  for (const parallel::ModelPart& part :
       parallel::place_layers(model->num_layers(), shape, placement)) {
    const auto stage = shape_of(model, part, shapes_only);
    const auto parameters = stage->parameters();
    if (!std::ranges::all_of(parameters, [&](const auto* placed) { return contains(*placed); }))
      return virtual_stage;
    ++virtual_stage;
  }
  MG_ASSERT(false);
}

}  // namespace megatron::training
