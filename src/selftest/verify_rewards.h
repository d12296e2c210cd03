// Compares rewards of pairs of texts, and the losses of a reward model, with those of another
// system.
#pragma once

#include <string>
#include <vector>

#include "selftest/report.h"
#include "selftest/verify.h"

namespace megatron::selftest {

// directory, for the model ../models/reward:
//   pairs.json             [{chosen_ids, rejected_ids, margin}]
//   cases.json             {CASE: {margin: whether margins count, center_rewards_coefficient}}
//   expected.safetensors   rewards [2B], of the chosen texts, then of the rejected ones; accuracy,
//                          mean_margin; CASE.loss, CASE.grad.NAME
bool has_rewards(const std::string& directory);
// One report per device. The gradient of the padding token's row of the embedding is not compared:
// the other system has none.
std::vector<Report> verify_rewards(const std::string& directory, const VerifyOptions& options);

}  // namespace megatron::selftest
