// What `megatron verify` reads and compares for encoders in addition to decoders.
#pragma once

#include "post_training/masked_text.h"
#include "selftest/canonical.h"
#include "selftest/expected.h"
#include "selftest/verify_batch.h"

namespace megatron::selftest {

// Reads token_type_ids [B,S] if the file has them, and restricts attention to the tokens whose
// attention_mask is 1. The other tokens attend to these as well, as in transformers, whose answers
// depend on them. batch.padding must have been read.
void read_encoder_inputs(Expected& expected, const models::Model& model, ExpectedBatch& batch);
// Reads the labels of an encoder:
//   of masked tokens  labels [B,S], -100 where none is; next_sentence_label [B] of pairs
//   of texts          labels [B], or as read_expected_batch() says
//   of tokens         labels [B,S], -100 where none is
//   of answers        start_positions and end_positions [B]
//   of no head        none: all tokens count, in the order of the file (verify_hidden.h)
void read_encoder_labels(Expected& expected, const models::Model& model, ExpectedBatch& batch);

// The loss of transformers' class for the model on the whole batch; null: the mean loss of the
// labels.
std::shared_ptr<const training::Objective> class_objective(const models::Model& model,
                                                           const corpus::HostBatch& batch);

// Splits and renames an encoder's outputs as expected.safetensors has them: for a model with pairs,
// prediction_logits and seq_relationship_logits [B,2]; for answers, start_logits and end_logits
// [B,S].
void rename_encoder_outputs(const models::Model& model, const ExpectedBatch& batch,
                            TensorMap& values);

// The gradient of a tensor, without the rows of the padding token's embedding and of the padding
// position: transformers computes no gradient for them, although the losses of answers and of
// hidden states include padded tokens.
std::vector<double> without_padding_row(std::vector<double> gradient, std::string_view tensor,
                                        const models::Model& model);

}  // namespace megatron::selftest
