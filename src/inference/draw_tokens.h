// The next tokens of sequences, from the logits of a pass.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "inference/pass.h"
#include "inference/pass_results.h"
#include "inference/sequence.h"
#include "models/model.h"

namespace megatron::inference {

// Of each sequence, ready[r] having row r of `logits`; ids below `vocabulary` are drawn. Matchers accept what is drawn,
// nothing else of a sequence changes. What keeps one from being drawn (logits that are no numbers, a grammar) is its
// DrawnToken's error; the others are drawn.
std::vector<DrawnToken> draw_tokens(std::span<Sequence* const> ready, Logits& logits,
                                    int64_t vocabulary, const models::Model& model,
                                    Runtime& runtime);

}  // namespace megatron::inference
