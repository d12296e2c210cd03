// What `megatron verify` reads and compares of encoder-decoders, beside what decoders have.
#pragma once

#include <optional>

#include "selftest/expected.h"
#include "selftest/verify_batch.h"

namespace megatron::selftest {

// Reads input_ids [B,E] and attention_mask [B,E], with zeros only at the end, of the encoder,
// decoder_input_ids [B,S], and labels [B,S], which are not shifted (-100 is not counted). Neither
// the encoder nor the decoder attends to padding. Throws Error for other shapes and for values
// outside the model's range.
ExpectedBatch read_encoder_decoder_batch(Expected& expected, const models::Model& model);
// Returns the token with which the decoder begins, followed by the expected greedy tokens, beside
// the first of the encoder's texts. nullopt if the file has no `greedy`.
std::optional<corpus::HostBatch> read_encoder_decoder_greedy(Expected& expected,
                                                             const corpus::HostBatch& batch,
                                                             const models::Model& model);

}  // namespace megatron::selftest
