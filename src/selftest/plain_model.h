// GPT-2 and Llama once more, by plain loops in fp64 over the tensors as they lie on disk: the
// yardstick of the model checks. It shares no code with the model, its ops or kernels.
#pragma once

#include "models/gpt/config.h"
#include "selftest/canonical.h"
#include "training/batch.h"

namespace megatron::selftest {

// Loss of each token of the batch [B*S], counted or not, without dropout.
std::vector<double> plain_losses(const models::GptConfig& config, const TensorMap& weights,
                                 const training::HostBatch& batch);

}  // namespace megatron::selftest
