// The next tokens of sequences, from the logits of a pass.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "inference/device_draws.h"
#include "inference/pass.h"
#include "inference/pass_results.h"
#include "inference/sequence.h"
#include "models/model.h"

namespace megatron::inference {

// By which rules the kernel draws the next token of each sequence (kernels::kSampleRules numbers): it leaves out those
// whose logits are changed first or are wanted.
std::vector<double> sampling_rules(std::span<Sequence* const> ready, int64_t vocabulary);

// Of each sequence, ready[r] having row r of `logits` and of what the device drew by these rules; ids below `vocabulary`
// are drawn. The host draws what the device did not. Matchers accept what is drawn, nothing else of a sequence changes.
// What keeps one from being drawn (logits that are no numbers, a grammar) is its DrawnToken's error; the others are
// drawn.
std::vector<DrawnToken> draw_tokens(std::span<Sequence* const> ready, const DeviceDraws& on_device,
                                    Logits& logits, int64_t vocabulary, const models::Model& model,
                                    Runtime& runtime);

}  // namespace megatron::inference
