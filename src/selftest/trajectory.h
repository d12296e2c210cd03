// Compares training steps with those of another system.
#pragma once

#include <string>
#include <vector>

#include "selftest/verify.h"

namespace megatron::selftest {

// A folder with case.json {start: a Hugging Face directory, relative to the folder above; flags:
// Megatron-LM's names and values, false: the flag is absent; ignore: {pattern of tensor names:
// [from, to) elements not compared}}, tokens.safetensors {tokens, labels (already shifted),
// loss_mask if any: [steps, batch, T]} and expected.safetensors {loss, grad_norm, lr,
// weight_decay [steps]; step1.<name>, final.<name>: parameters after the first and the last update;
// exp_avg., exp_avg_sq., momentum_buffer.<name> after the last}. Runs training::TrainStep over all
// rows and compares everything; a tensor of expected.safetensors that was not compared is a
// failure. Data-parallel ranks share the micro-batches, which are cut into smaller ones if there
// are too few and the loss does not change. Returns one report per device. Throws Error for a flag
// that is not known.
std::vector<Report> verify_trajectory(const std::string& directory, const VerifyOptions& options);

}  // namespace megatron::selftest
