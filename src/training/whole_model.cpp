#include "training/whole_model.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "base/log.h"
#include "checkpoint/name_list.h"
#include "models/adapters/adapter_rules.h"
#include "models/adapters/fused_adapters.h"
#include "training/stored_names.h"
#include "training/trained_model.h"

namespace megatron::training {
namespace {

std::vector<checkpoint::WholeTensor> saved_of(const WholeModel& whole,
                                              const models::Stage& undivided) {
  const models::LoraConfig* const adapter = whole.model->adapter();
  if (adapter == nullptr) return whole.weights;
  std::vector<parallel::ParameterSpec*> trained;
  std::ranges::copy_if(undivided.parameters(), std::back_inserter(trained),
                       [](const auto* spec) { return spec->parameter.trainable; });
  std::vector<checkpoint::WholeTensor> saved = checkpoint::whole_tensors(trained);
  for (checkpoint::WholeTensor& tensor : saved)
    tensor.name = models::stored_with_adapter(*adapter, tensor.name);
  return saved;
}

}  // namespace

WholeModel whole_model(const models::Model& model, DType type,
                       const optim::OptimizerConfig* optimizer,
                       const std::vector<std::string>& freeze) {
  Runtime shapes_only({DeviceKind::meta, 0}, 1);
  const std::unique_ptr<comm::Group> alone = comm::single();
  TrainedModel trained(model, type, 0, {}, *alone, shapes_only, {.freeze = freeze});
  WholeModel whole = whole_model(trained.parts.whole());
  if (optimizer == nullptr) return whole;
  trained.step.begin(*optimizer);
  whole.optimizer = checkpoint::whole_tensors(held_states(trained.step));
  return whole;
}

WholeModel whole_model(const models::Stage& undivided) {
  const std::vector<parallel::ParameterSpec*> tensors = models::tensors_of(undivided);
  WholeModel whole{.weights = checkpoint::whole_tensors(tensors), .model = undivided.model()};
  for (const parallel::ParameterSpec* tensor : tensors) {
    const std::string &name = tensor->parameter.name,
                      &stored = tensor->placement.tensors.at(0).name;
    if (name == "embedding.weight") whole.table = stored;
    if (name == "position_embedding.weight") whole.positions = stored;
    if (name == "output.weight" || name == "score.weight") whole.head = stored;
    if (name.starts_with("score_transform.") || name.starts_with("score_bias"))
      whole.head_parts.push_back(stored);
  }
  for (const nn::ModuleState* state : undivided.states()) {
    if (state->of_training) continue;
    for (const parallel::CanonicalTensor& part : state->placed.placement.tensors)
      whole.states.push_back(part.name);
  }
  whole.saved = saved_of(whole, undivided);
  return whole;
}

std::vector<checkpoint::HeldTensor> held_weights(std::span<const parallel::Shard> shards,
                                                 std::span<nn::ModuleState* const> states) {
  std::vector<checkpoint::HeldTensor> held = checkpoint::held(shards);
  for (nn::ModuleState* state : states) {
    if (state->of_training) continue;
    parallel::ParameterSpec* const placed = &state->placed;
    const std::vector<checkpoint::HeldTensor> one = checkpoint::held(std::span(&placed, 1));
    held.insert(held.end(), one.begin(), one.end());
  }
  return held;
}

std::vector<checkpoint::HeldTensor> held_saved(const TrainStep& step, const models::Model& model,
                                               RenamedPlacements& renamed) {
  const models::LoraConfig* const adapter = model->adapter();
  if (adapter == nullptr) return held_weights(step.shards(), step.states());
  std::vector<parallel::Shard> trained;
  std::ranges::copy_if(step.shards(), std::back_inserter(trained),
                       [](const auto& shard) { return shard.placed->parameter.trainable; });
  std::vector<checkpoint::HeldTensor> held = checkpoint::held(trained);
  for (checkpoint::HeldTensor& tensor : held) {
    const auto [place, is_new] = renamed.try_emplace(tensor.placement, *tensor.placement);
    if (is_new)
      for (parallel::CanonicalTensor& part : place->second.tensors)
        part.name = models::stored_with_adapter(*adapter, part.name);
    tensor.placement = &place->second;
  }
  return held;
}

std::vector<std::string> adapter_tensors(const WholeModel& whole) {
  std::vector<std::string> names;
  for (const checkpoint::WholeTensor& tensor : whole.weights)
    if (tensor.name.starts_with(checkpoint::kAdapterPrefix)) names.push_back(tensor.name);
  return names;
}

bool has_a_row_per_token(const WholeModel& whole, const std::string& tensor) {
  return tensor == whole.table || (tensor == whole.head && whole.model->score_labels() == 0);
}

void initialize_token_rows(std::span<const parallel::Shard> shards, const WholeModel& whole,
                           uint64_t seed, Stream& stream) {
  for (const parallel::Shard& shard : shards)
    if (has_a_row_per_token(whole, shard.placed->placement.tensors.at(0).name))
      parallel::initialize(shard, seed, stream);
}

std::vector<std::string> absent_states(const WholeModel& whole,
                                       const checkpoint::ModelDirectory& directory) {
  const StoredNames names(whole, directory);
  std::vector<std::string> absent;
  std::ranges::copy_if(whole.states, std::back_inserter(absent), [&](const std::string& name) {
    return directory.find(names.of(name)) == nullptr;
  });
  return absent;
}

std::vector<std::string> new_head_tensors(const WholeModel& whole,
                                          const checkpoint::ModelDirectory& directory) {
  const StoredNames names(whole, directory);
  std::vector<std::string> tensors = {whole.head};
  std::ranges::copy_if(whole.head_parts, std::back_inserter(tensors), [&](const std::string& name) {
    return directory.find(names.of(name)) == nullptr;
  });
  return tensors;
}

namespace {

// The tensors to be read, with the names and shapes that the directory has.
class StoredTensors {
 public:
  StoredTensors(std::vector<checkpoint::HeldTensor> held, const WholeModel& whole,
                const StoredNames& names, const checkpoint::ModelDirectory& directory,
                const LoadOptions& options)
      : held_(std::move(held)), whole_(whole.weights) {
    const auto is_absent = [&](const std::string& name) {
      return std::ranges::find(options.absent, name) != options.absent.end();
    };
    std::erase_if(held_, [&](const checkpoint::HeldTensor& tensor) {
      return is_absent(tensor.placement->tensors.at(0).name);
    });
    std::erase_if(whole_, [&](const auto& tensor) { return is_absent(tensor.name); });
    const auto is_smaller = [&](const std::string& name) {
      return options.stored_tokens > 0 && has_a_row_per_token(whole, name);
    };
    placements_.reserve(held_.size());  // held tensors point into it
    for (checkpoint::HeldTensor& tensor : held_) {
      parallel::Placement& placement = placements_.emplace_back(*tensor.placement);
      tensor.placement = &placement;
      for (parallel::CanonicalTensor& part : placement.tensors) {
        if (is_smaller(part.name)) {
          keep_first_rows(part, options.stored_tokens);
          tensor.keeps_rest = true;
        }
        part.name = names.of(part.name);
      }
    }
    for (checkpoint::WholeTensor& tensor : whole_) {
      if (is_smaller(tensor.name)) tensor.shape.set(0, options.stored_tokens);
      tensor.name = names.of(tensor.name);
    }
    const models::LoraConfig* const adapter = whole.model->adapter();
    if (adapter == nullptr || !directory.is_adapter()) return;
    const models::FusedAdapters fused(*adapter, directory, whole_);
    for (parallel::Placement& placement : placements_) fused.replace(placement);
  }

  std::span<const checkpoint::HeldTensor> held() const { return held_; }
  std::span<const checkpoint::WholeTensor> whole() const { return whole_; }

 private:
  static void keep_first_rows(parallel::CanonicalTensor& part, int64_t rows) {
    std::vector<parallel::Slice> slices = part.slices(0);
    for (parallel::Slice& slice : slices)
      slice.size = std::clamp(rows - slice.global_begin, int64_t{0}, slice.size);
    std::erase_if(slices, [](const parallel::Slice& slice) { return slice.size == 0; });
    std::erase_if(part.held, [](const parallel::AxisSlices& held) { return held.axis == 0; });
    part.held.push_back({0, std::move(slices)});
    part.global.set(0, rows);
  }

  std::vector<checkpoint::HeldTensor> held_;
  std::vector<checkpoint::WholeTensor> whole_;
  std::vector<parallel::Placement> placements_;
};

void log_left_out(const checkpoint::ModelDirectory& directory, const models::Model& model,
                  const StoredNames& names, const std::vector<std::string>& surplus) {
  if (!directory.disagreement().empty())
    log::warning("{}. The contents of the files take precedence", directory.disagreement());
  if (!names.prefix().empty() && names.prefix() != model->base_prefix())
    log::info("'{}' has tensor names that begin with '{}' instead of '{}'", directory.path(),
              names.prefix(), model->base_prefix());
  std::vector<std::string> unneeded, predicting, layers, unused;
  std::string keys;
  for (const StoredNames::LeftOut& one : names.left_out()) {
    if (!one.absent_key.empty()) {
      unused.push_back(one.name);
      if (keys.find(one.absent_key) == keys.npos)
        keys += (keys.empty() ? "" : ", ") + one.absent_key;
      continue;
    }
    (one.layer.empty() ? unneeded : predicting).push_back(one.name);
    if (!one.layer.empty() && std::ranges::find(layers, one.layer) == layers.end())
      layers.push_back(one.layer);
  }
  if (!unneeded.empty())
    log::info("'{}' contains {}, which the model does not need", directory.path(),
              checkpoint::counted(unneeded));
  if (!layers.empty())
    log::info("'{}' has {} tensors of layers for multi-token prediction, which are ignored: {}",
              directory.path(), predicting.size(), checkpoint::counted(layers));
  if (!unused.empty())
    log::warning(
        "the config.json of '{}' has no {}, so the model does not use {}, as in transformers; set "
        "it to true if the model was trained with them",
        directory.path(), keys, checkpoint::counted(unused));
  if (!surplus.empty())
    log::warning(
        "--ignore-surplus-tensors: '{}' has tensors that the model does not have, which are "
        "ignored: {}",
        directory.path(), checkpoint::counted(surplus));
}

}  // namespace

void load_weights(const checkpoint::ModelDirectory& directory,
                  std::vector<checkpoint::HeldTensor> held, const WholeModel& whole,
                  const LoadOptions& options) {
  const StoredNames names(whole, directory);
  const StoredTensors tensors(std::move(held), whole, names, directory, options);
  std::vector<std::string> left_out;
  for (const StoredNames::LeftOut& one : names.left_out()) left_out.push_back(one.name);
  const std::vector<std::string> surplus =
      checkpoint::load(directory, tensors.held(), tensors.whole(), left_out, options.progress);
  if (options.tells) log_left_out(directory, whole.model, names, surplus);
}

std::string absent_states_text(const std::string& directory, std::span<const std::string> absent) {
  return fmt::format("'{}' has no module states {}: they are initialized as in a new model",
                     directory, checkpoint::counted(absent));
}

std::vector<checkpoint::HeldTensor> held_states(const TrainStep& step) {
  std::vector<checkpoint::HeldTensor> held;
  for (nn::ModuleState* state : step.states()) {
    if (!state->of_training) continue;
    parallel::ParameterSpec* const placed = &state->placed;
    held.push_back(checkpoint::held(std::span(&placed, 1)).at(0));
  }
  for (const optim::Optimizer::State& state : step.optimizer().states()) {
    held.push_back({.prefix = state.name + ".",
                    .placement = &state.placed->placement,
                    .value = state.value,
                    .shape = state.placed->parameter.value.shape(),
                    .begin = state.begin});
  }
  return held;
}

void load_states(const checkpoint::CheckpointDirectory& checkpoint, const TrainStep& step,
                 const WholeModel& whole, bool tells) {
  std::map<std::string, Shape, std::less<>> stored;
  for (const checkpoint::TensorInfo& info : checkpoint.optimizer_tensors())
    if (info.name.starts_with(nn::kQuantizerPrefix)) stored.emplace(info.name, info.shape);
  std::vector<std::string> absent, unused;
  std::vector<checkpoint::WholeTensor> wanted;
  for (const checkpoint::WholeTensor& tensor : whole.optimizer) {
    const bool of_module = tensor.name.starts_with(nn::kQuantizerPrefix);
    const auto found = stored.find(tensor.name);
    if (of_module && (found == stored.end() || found->second != tensor.shape)) {
      absent.push_back(tensor.name);
    } else {
      wanted.push_back(tensor);
      stored.erase(tensor.name);
    }
  }
  for (const auto& [name, shape] : stored) unused.push_back(name);
  std::vector<checkpoint::HeldTensor> held = held_states(step);
  std::erase_if(held, [&](const checkpoint::HeldTensor& tensor) {
    return tensor.prefix.empty() &&
           std::ranges::find(absent, tensor.placement->tensors.at(0).name) != absent.end();
  });
  checkpoint.load_optimizer(held, wanted, unused);
  if (tells && !absent.empty())
    log::info("'{}' lacks states of this run, which are initialized: {}", checkpoint.path(),
              checkpoint::counted(absent));
  if (tells && !unused.empty())
    log::info("'{}' has {}, which this run does not use", checkpoint.path(),
              checkpoint::counted(unused));
}

}  // namespace megatron::training
