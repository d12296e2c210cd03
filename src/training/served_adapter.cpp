#include "training/served_adapter.h"

#include <algorithm>

#include "base/error.h"
#include "checkpoint/held_tensor.h"
#include "models/adapters/adapter_rules.h"
#include "training/whole_model.h"

namespace megatron::training {

std::shared_ptr<const inference::Adapter> load_adapter(const checkpoint::ModelDirectory& directory,
                                                       const Device& device, DType type,
                                                       int64_t max_rank) {
  const models::Model model = models::model_of(directory);
  auto adapter = std::make_shared<inference::Adapter>(model, device, type);
  for (const auto& [module, of_module] :
       models::adapted_modules(*model->adapter(), adapter->stage()).adapted)
    MG_CHECK(of_module.rank <= max_rank,
             "the adapter in {} has rank {} at {}, and --max-lora-rank is {}: raise it",
             directory.path(), of_module.rank, module, max_rank);
  const WholeModel whole = whole_model(adapter->stage());
  const std::vector<std::string> absent = absent_states(whole, directory);
  load_weights(directory, checkpoint::held(adapter->tensors()), whole, {.absent = absent});
  adapter->runtime().stream().synchronize();
  return adapter;
}

}  // namespace megatron::training
