// The inputs that an expected.safetensors holds, as batches of a model.
#pragma once

#include <optional>
#include <vector>

#include "corpus/batch.h"
#include "models/model.h"
#include "selftest/expected.h"

namespace megatron::selftest {

struct ExpectedBatch {
  corpus::HostBatch host;
  // Of a model that scores texts: the row of `host` at which each sequence's score is made.
  std::vector<int64_t> score_rows;
  std::vector<bool> padding;  // [B*S]: nothing is expected of these rows; empty: no row is padding

  // The part of data-parallel rank `rank` of `ranks`, of as many sequences on each: where there are too few, a rank gets
  // others whose tokens do not count.
  corpus::HostBatch share(int rank, int ranks) const;
};

// input_ids [B,S]; labels [B,S] of a language model, not shifted (Hugging Face: -100 is not counted), or
// [B] of a model that scores texts, at the last token that is not its padding; attention_mask [B,S]: zeros
// stand at the end. Throws Error for other shapes and values outside of the model.
ExpectedBatch read_expected_batch(Expected& expected, const models::Model& model);

// Tokens of the prompt of `greedy`.
constexpr int64_t kGreedyPrompt = 8;
// The prompt with the greedy tokens that are wanted behind it: a model that chooses each of them where it
// sees those before would have generated them. None where the file has no `greedy`.
std::optional<corpus::HostBatch> read_greedy_batch(Expected& expected,
                                                   const corpus::HostBatch& batch,
                                                   const models::Model& model);

}  // namespace megatron::selftest
