// Factors of token embeddings in models that leave out those of masked tokens.
#pragma once

#include <vector>

#include "corpus/batch.h"

namespace megatron::corpus {

// ESM-2's token dropout (models/left_out.h), whose tokens and masks are counted in each token's
// document. Returns the factors of the tokens that this rank holds [T].
std::vector<double> embedding_factors(const HostBatch& batch, int64_t mask_token);

}  // namespace megatron::corpus
