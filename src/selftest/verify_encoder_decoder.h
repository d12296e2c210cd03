// What `megatron verify` reads and compares for encoder-decoders in addition to decoders.
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
// Returns a batch with the first of the encoder's texts, whose decoder reads its start token and
// then the expected greedy tokens. nullopt if the file has no `greedy`.
std::optional<corpus::HostBatch> read_encoder_decoder_greedy(Expected& expected,
                                                             const corpus::HostBatch& batch,
                                                             const models::Model& model);

}  // namespace megatron::selftest
