// Training on examples: answers in chats, preferences between completions or texts, labels.
#pragma once

#include <memory>

#include "settings/data_settings.h"
#include "training/task.h"

namespace megatron::post_training {

// The task of --task; null: next tokens. Throws Error for a coefficient or labels that cannot be.
std::shared_ptr<const training::Task> make_task(const settings::DataSettings& settings);

}  // namespace megatron::post_training
