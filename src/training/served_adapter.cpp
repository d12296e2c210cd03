#include "training/served_adapter.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/machine_limits.h"
#include "checkpoint/held_tensor.h"
#include "models/adapters/adapter_rules.h"
#include "models/adapters/lora_config.h"
#include "resume/trainer_state.h"
#include "training/whole_model.h"

namespace megatron::training {
namespace {

// The model with adapters of all linear layers and experts.
models::Model with_largest_adapter(const models::Model& model, int64_t rank) {
  models::LoraConfig config;
  config.rank = rank;
  config.all_linear = true;
  Runtime shapes_only({DeviceKind::meta, 0}, 1);
  config.target_parameters = models::expert_parameters(
      *model.build(shapes_only, DType::f32, 0, {.layers = model->num_layers()}, {}));
  return model->with({.adapter = std::make_shared<const models::LoraConfig>(std::move(config))});
}

}  // namespace

ServedAdapters::ServedAdapters(ServedAdaptersOptions options, std::string base,
                               const std::vector<std::string>& directories, comm::Group& world)
    : options_(std::move(options)),
      base_(std::move(base)),
      groups_(options_.layout, world),
      tells_(world.rank() == 0) {
  const models::Model model = models::model_of(checkpoint::ModelDirectory(base_, options_.reading));
  description_ = model->base()->describe();
  int64_t bytes = inference::adapter_bytes(with_largest_adapter(model, options_.max_rank),
                                           options_.type, &groups_);
  for (const std::string& directory : directories)
    bytes = std::max(bytes, inference::adapter_bytes(models::model_of(open(directory)),
                                                     options_.type, &groups_));
  reserve(bytes);
}

void ServedAdapters::reserve(int64_t bytes) {
  const auto refuse = [&](std::string_view reason) {
    fail(
        "memory cannot be reserved for {} adapters (--max-loras) and one that replaces another, of "
        "{} bytes each, as all linear layers need at rank {} (--max-lora-rank) or the largest of "
        "--lora-modules needs: {}; lower --max-loras or --max-lora-rank",
        options_.most, bytes, options_.max_rank, reason);
  };
  // Host memory that does not exist would be missed only when it is written.
  if (options_.device.is_host() &&
      static_cast<double>(options_.most + 1) * static_cast<double>(bytes) >
          static_cast<double>(available_memory()))
    refuse("there are " + available_memory_text());
  try {
    memory_ = std::make_unique<inference::AdapterMemory>(options_.device, options_.most + 1, bytes);
  } catch (const Error& error) {
    refuse(error.what());
  }
}

checkpoint::ModelDirectory ServedAdapters::open(const std::string& directory) const {
  checkpoint::ReadingOptions reading = options_.reading;
  reading.base = base_;
  return checkpoint::ModelDirectory(directory, reading);
}

std::shared_ptr<Runtime> ServedAdapters::take(bool waits) {
  std::shared_ptr<Runtime> memory = memory_->take(waits);
  MG_CHECK(memory != nullptr,
           "the memory for {} adapters (--max-loras and one more for replacing an adapter) is all "
           "in use, by loaded adapters and by unfinished texts with unloaded ones: try again when "
           "these texts have ended, or start the server with a larger --max-loras",
           memory_->adapters());
  return memory;
}

void ServedAdapters::check_rank(const models::Stage& whole, const std::string& directory) const {
  const models::AdaptedModules modules = models::adapted_modules(*whole.model()->adapter(), whole);
  for (const auto* adapted : {&modules.adapted, &modules.parameters})
    for (const auto& [module, of_module] : *adapted)
      MG_CHECK(of_module.rank <= options_.max_rank,
               "the adapter in {} has rank {} at {}, and --max-lora-rank is {}: raise it",
               directory, of_module.rank, module, options_.max_rank);
}

std::shared_ptr<const inference::Adapter> ServedAdapters::load(const std::string& path,
                                                               std::shared_ptr<Runtime> memory,
                                                               uint64_t number) {
  const checkpoint::ModelDirectory directory = open(path);
  const models::Model model = models::model_of(directory);
  MG_CHECK(model->base()->describe() == description_,
           "the adapter in {} belongs to another model than the one being served: {}", path,
           resume::differences(model->base()->describe(), description_));
  Runtime shapes_only({DeviceKind::meta, 0}, 1);
  const auto undivided =
      model.build(shapes_only, options_.type, 0, {.layers = model->num_layers()}, {});
  check_rank(*undivided, path);
  const int64_t bytes = inference::adapter_bytes(model, options_.type, &groups_);
  MG_CHECK(bytes <= memory_->bytes_of_one(),
           "the adapter in {} needs {} bytes, and {} are reserved for each, as adapters of all "
           "linear layers with rank {} need: start the server with a larger --max-lora-rank, or "
           "with this adapter in --lora-modules",
           path, bytes, memory_->bytes_of_one(), options_.max_rank);
  const auto adapter = std::make_shared<inference::Adapter>(model, std::move(memory), options_.type,
                                                            number, &groups_);
  const WholeModel whole = whole_model(*undivided);
  const std::vector<std::string> absent = absent_states(whole, directory);
  load_weights(directory, checkpoint::held(adapter->tensors()), whole,
               {.absent = absent, .tells = tells_});
  adapter->runtime().stream().synchronize();
  return adapter;
}

}  // namespace megatron::training
