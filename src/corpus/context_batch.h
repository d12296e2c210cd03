// The tensors by which context-parallel ranks exchange the tokens of a micro-batch.
#pragma once

#include <span>

#include "corpus/batch.h"

namespace megatron::corpus {

// Allocates the tensors, and fills those that do not depend on documents. reaches: reaches of
// attention layers whose ranks exchange only the keys that queries see.
void allocate_context(Runtime& runtime, const HostBatch& host,
                      std::span<const parallel::AttentionReach> reaches,
                      parallel::ContextTokens& tokens);
// Fills the tensors that depend on documents, which decide which tokens a rank holds.
void fill_context(Runtime& runtime, const HostBatch& host, parallel::ContextTokens& tokens);

}  // namespace megatron::corpus
