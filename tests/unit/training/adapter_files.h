// Directories of adapters of the models in tests/golden/vectors.
#pragma once

#include <string>
#include <vector>

#include "models/adapters/lora_config.h"
#include "text.h"
#include "training/whole_model.h"
#include "unit/checkpoint/raw_tensors.h"

namespace megatron::testing {

inline std::string base_of(const std::string& family) {
  return std::string(MEGATRON_GOLDEN) + "/hf/" + family;
}

inline models::Model adapted(const std::string& family, const models::LoraConfig& config) {
  return models::model_from_directory(base_of(family))
      ->with({.adapter = std::make_shared<const models::LoraConfig>(config)});
}

// Writes a directory with what a checkpoint of the model has; every byte is zero, so that numbers
// are.
inline void write_adapter(const std::string& folder, const std::string& family,
                          const models::Model& model) {
  models::LoraConfig config = *model->adapter();
  config.base_model = base_of(family);
  write_file(folder + "/adapter_config.json", models::to_json(config).dump());
  std::vector<RawTensor> tensors;
  for (const checkpoint::WholeTensor& tensor : training::whole_model(model, DType::f32).saved)
    tensors.push_back({tensor.name, "F32", tensor.shape.str(),
                       std::string(static_cast<size_t>(tensor.shape.elements() * 4), '\0')});
  write_raw(folder + "/adapter_model.safetensors", tensors);
}

}  // namespace megatron::testing
