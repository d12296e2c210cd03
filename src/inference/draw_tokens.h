// Samples the next tokens of sequences from the logits of a pass.
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

// Returns the rules by which the kernel samples each sequence's next token (kernels::kSampleRules
// numbers). The kernel skips sequences whose logits are modified first or are needed on the host.
std::vector<double> sampling_rules(std::span<Sequence* const> ready, int64_t vocabulary);

// Draws a token below `vocabulary` for each sequence; ready[r] has row r of `logits` and of the
// device's draws by the same rules. The host draws what the device did not. Matchers accept the
// drawn tokens; nothing else of a sequence changes. For a beam, the most likely tokens are returned
// as alternatives, as many as its search needs, and none is drawn. If a sequence cannot be drawn
// from (non-finite logits, a grammar), its DrawnToken holds the error; the others are drawn.
std::vector<DrawnToken> draw_tokens(std::span<Sequence* const> ready, const DeviceDraws& on_device,
                                    Logits& logits, int64_t vocabulary, const models::Model& model,
                                    Runtime& runtime);

}  // namespace megatron::inference
