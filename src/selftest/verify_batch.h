// The inputs in an expected.safetensors, as batches of a model.
#pragma once

#include <optional>
#include <vector>

#include "corpus/batch.h"
#include "models/model.h"
#include "selftest/expected.h"

namespace megatron::selftest {

struct ExpectedBatch {
  corpus::HostBatch host;
  // For a model that scores texts: the row of `host` at which each sequence is scored.
  std::vector<int64_t> score_rows;
  std::vector<bool> padding;          // [B*S]: rows whose outputs are ignored; empty: none
  std::vector<bool> encoder_padding;  // the same for the encoder's texts

  // Returns the share of data-parallel rank `rank` of `ranks`. All ranks get the same number of
  // sequences: if there are too few, a rank gets padding sequences whose tokens are not counted.
  corpus::HostBatch share(int rank, int ranks) const;
};

// Reads input_ids [B,S]; labels [B,S] of a language model, not shifted (Hugging Face: -100 is not
// counted), or [B] of a model that scores texts, at the last token that is not its padding, or [B,
// labels] (0 or 1) of one that gives them several labels (multi_label_classification);
// attention_mask [B,S], with zeros only at the end; of encoders what verify_encoder.h says. Throws
// Error for other shapes and for values outside the model's range.
ExpectedBatch read_expected_batch(Expected& expected, const models::Model& model);

// Reads attention_mask of the texts in `batch`: which tokens are padding; empty if it is absent.
std::vector<bool> read_padding(Expected& expected, const corpus::HostBatch& batch);

// Number of tokens in the prompt of `greedy`.
constexpr int64_t kGreedyPrompt = 8;
// Returns the prompt followed by the expected greedy tokens: a model that chooses each of them
// given the preceding ones would have generated them. nullopt if the file has no `greedy`.
std::optional<corpus::HostBatch> read_greedy_batch(Expected& expected,
                                                   const corpus::HostBatch& batch,
                                                   const models::Model& model);

}  // namespace megatron::selftest
