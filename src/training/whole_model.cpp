#include "training/whole_model.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/name_list.h"
#include "training/trained_model.h"

namespace megatron::training {

WholeModel whole_model(const models::Model& model, DType type,
                       const optim::OptimizerConfig* optimizer) {
  Runtime shapes_only({DeviceKind::meta, 0}, 1);
  const std::unique_ptr<comm::Group> alone = comm::single();
  TrainedModel trained(model, type, 0, {}, *alone, shapes_only, {});
  WholeModel whole = whole_model(trained.parts.whole());
  if (optimizer == nullptr) return whole;
  trained.step.begin(*optimizer);
  whole.optimizer = checkpoint::whole_tensors(held_states(trained.step.optimizer()));
  return whole;
}

WholeModel whole_model(const models::Stage& undivided) {
  const std::vector<parallel::ParameterSpec*> tensors = models::tensors_of(undivided);
  WholeModel whole{.weights = checkpoint::whole_tensors(tensors), .model = undivided.model()};
  for (const nn::ModuleState* state : undivided.states())
    for (const parallel::CanonicalTensor& part : state->placed.placement.tensors)
      whole.states.push_back(part.name);
  return whole;
}

std::vector<checkpoint::HeldTensor> held_weights(const TrainStep& step) {
  std::vector<checkpoint::HeldTensor> held = checkpoint::held(step.shards());
  for (nn::ModuleState* state : step.states()) {
    parallel::ParameterSpec* const placed = &state->placed;
    const std::vector<checkpoint::HeldTensor> one = checkpoint::held(std::span(&placed, 1));
    held.insert(held.end(), one.begin(), one.end());
  }
  return held;
}

std::vector<std::string> absent_states(const WholeModel& whole,
                                       const checkpoint::ModelDirectory& directory) {
  std::vector<std::string> absent;
  std::ranges::copy_if(whole.states, std::back_inserter(absent),
                       [&](const std::string& name) { return directory.find(name) == nullptr; });
  return absent;
}

std::string lacking_prefix(const models::Model& model,
                           const checkpoint::ModelDirectory& directory) {
  const std::string prefix(model->base_prefix());
  for (const std::string& name : directory.tensor_names())
    if (name.starts_with(prefix)) return {};
  return prefix;
}

namespace {

std::string without(const std::string& prefix, const std::string& name) {
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

// Placements by the names of a directory that lacks a prefix.
class NamesWithout {
 public:
  NamesWithout(const std::string& prefix, std::span<checkpoint::HeldTensor> held,
               std::span<checkpoint::WholeTensor> whole) {
    if (prefix.empty()) return;
    placements_.reserve(held.size());  // held tensors point into it
    for (checkpoint::HeldTensor& tensor : held) {
      placements_.push_back(*tensor.placement);
      for (parallel::CanonicalTensor& part : placements_.back().tensors)
        part.name = without(prefix, part.name);
      tensor.placement = &placements_.back();
    }
    for (checkpoint::WholeTensor& tensor : whole) tensor.name = without(prefix, tensor.name);
  }

 private:
  std::vector<parallel::Placement> placements_;
};

// Tensors of the directory's layers that predict tokens beyond the next one, which have a projection of the embedding
// and the last hidden state; logged by layer.
std::vector<std::string> prediction_tensors(const models::Model& model,
                                            const checkpoint::ModelDirectory& directory,
                                            const std::string& prefix) {
  std::vector<std::string> tensors, layers;
  for (const std::string& name : directory.tensor_names()) {
    const std::string layer = model->prediction_layer(prefix + name);
    if (layer.empty() || directory.find(without(prefix, layer + ".eh_proj.weight")) == nullptr)
      continue;
    tensors.push_back(name);
    if (std::ranges::find(layers, layer) == layers.end()) layers.push_back(layer);
  }
  if (!layers.empty())
    log::info("'{}' has {} tensors of layers for multi-token prediction, which are left out: {}",
              directory.path(), tensors.size(), checkpoint::counted(layers));
  return tensors;
}

// Tensors of the directory that the model needs not.
std::vector<std::string> dropped_tensors(const models::Model& model,
                                         const checkpoint::ModelDirectory& directory,
                                         const std::string& prefix) {
  std::vector<std::string> dropped;
  for (const std::string& name : directory.tensor_names())
    if (model->is_surplus(prefix + name)) dropped.push_back(name);
  auto tied = model->tied_output();
  if (tied) tied->table = without(prefix, tied->table);
  if (tied && directory.find(tied->output) != nullptr && directory.find(tied->table) != nullptr) {
    MG_CHECK(std::ranges::equal(directory.bytes(tied->output), directory.bytes(tied->table)),
             "'{}' has {} and {}, which differ, although its config.json ties them "
             "(tie_word_embeddings); set that to false",
             directory.path(), tied->output, tied->table);
    dropped.push_back(tied->output);
  }
  if (!dropped.empty())
    log::info("'{}' has {} that the model does not need", directory.path(),
              checkpoint::counted(dropped));
  std::ranges::copy(prediction_tensors(model, directory, prefix), std::back_inserter(dropped));
  return dropped;
}

}  // namespace

void load_weights(const checkpoint::ModelDirectory& directory,
                  std::vector<checkpoint::HeldTensor> held, const WholeModel& whole,
                  std::span<const std::string> absent,
                  const std::function<void(int64_t)>& progress) {
  const auto is_absent = [&](const std::string& name) {
    return std::ranges::find(absent, name) != absent.end();
  };
  std::erase_if(held, [&](const checkpoint::HeldTensor& tensor) {
    return is_absent(tensor.placement->tensors.at(0).name);
  });
  std::vector<checkpoint::WholeTensor> present = whole.weights;
  std::erase_if(present, [&](const auto& tensor) { return is_absent(tensor.name); });
  const std::string prefix = lacking_prefix(whole.model, directory);
  const NamesWithout names(prefix, held, present);
  checkpoint::load(directory, held, present, dropped_tensors(whole.model, directory, prefix),
                   progress);
}

std::string absent_states_text(const std::string& directory, std::span<const std::string> absent) {
  return fmt::format("'{}' has no module states {}: they start as in a new model", directory,
                     checkpoint::counted(absent));
}

std::vector<checkpoint::HeldTensor> held_states(const optim::Optimizer& optimizer) {
  std::vector<checkpoint::HeldTensor> held;
  for (const optim::Optimizer::State& state : optimizer.states()) {
    held.push_back({.prefix = state.name + ".",
                    .placement = &state.placed->placement,
                    .value = state.value,
                    .shape = state.placed->parameter.value.shape(),
                    .begin = state.begin});
  }
  return held;
}

}  // namespace megatron::training
