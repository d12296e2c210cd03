// Inputs of a micro-batch, which have no gradient.
#pragma once

#include <utility>
#include <vector>

#include "autograd/tape.h"
#include "kernels/row_tokens.h"
#include "parallel/context_attention.h"
#include "parallel/tensor_parallel.h"
#include "parallel/token_log_probabilities.h"
#include "tensor/tensor.h"

namespace megatron::nn {

class SequenceState;

// A batch whose tokens follow those that a state holds (made by SequenceState::next). It is one
// sequence: the new tokens of all sequences, concatenated.
struct Continuation {
  // Tokens [first, first + B * S) of the batch: S new tokens each of B sequences.
  struct Call {
    int64_t first = 0;
    // i32 [B,S]: index of the last key that each token sees: its own within its sequence, or the
    // last of its encoder's text.
    Tensor q_positions;
    Tensor block_table;  // i32 [B,blocks]: pages, or slots, of each sequence
    Tensor own_pages;    // i32 [B,blocks]: 0, 1, 2, ...; only if a layer needs it
  };
  // State of the layers that share one window, have slots, or attend to an encoder's text
  // (SequenceState::groups).
  struct Group {
    // i32 [T]: row, over all pages, for each token's keys and values; or [E], for each token of the
    // encoder's texts that this batch reads.
    Tensor rows;
    std::vector<Call> calls;
  };

  SequenceState* state = nullptr;  // borrowed; null: sequences start in this batch
  std::vector<Group> groups;
  // By layer of the model, i32 [T,n]: where a layer with k experts per token leaves those of each
  // token in the first k columns. Empty: not requested.
  std::vector<Tensor> expert_choices;
};

// Which tokens routers count: not the padding of rows of examples, which goes to no expert either.
struct RealTokens {
  Tensor rows;  // i32 [T]: index of each token, -1 for padding; undefined: there is no padding
  // f32 (f64) [B+1]: the number of other tokens in each sequence on all context-parallel ranks, and
  // in all of them; and the inverse of each, 0 for 0.
  Tensor numbers, inverses;
};

// What a depth of multi-token prediction reads and predicts for each token of a batch: depth k = 1,
// 2, ... the token and the label of the k-th token after it in the same document. Where there is
// none, the token is 0 and the weight and the count are 0.
struct PredictedTokens {
  Tensor tokens, labels;  // i32 [T]
  // f32 (f64) [T]: weight of each loss in the objective, and in the mean that is logged.
  Tensor loss_weights, counts;
};

// Consecutive texts of equal length among the tokens of a batch.
struct TextRun {
  int64_t first = 0;  // index of the first token
  int64_t texts = 0, length = 0;
};

// B sequences of which this rank holds S tokens each, flattened to T = B * S.
struct Batch {
  parallel::TokenLayout layout;
  // The texts that an encoder reads, one for each sequence, with a length of their own; borrowed.
  // Null: the model is one list of layers, or a state holds what the encoder has read before.
  const Batch* encoder = nullptr;
  Tensor tokens;       // i32 [T]
  Tensor positions;    // i32 [T]: index in the position table or of the rotary angles
  Tensor token_types;  // i32 [T]: index in the model's table of types; undefined: it has none
  // f32 (f64) [T]: factors of the embeddings of a model that leaves out masked tokens; or
  // undefined.
  Tensor embedding_factors;
  Tensor labels;        // i32 [T]; not read if the weight is 0
  Tensor targets;       // f32 (f64) [T]: used instead of labels if scores are numbers
  Tensor loss_weights;  // f32 (f64) [T]: weight of each token's loss in the objective
  // The tokens with a label, for an objective of log-probabilities; undefined without one.
  parallel::LabelledTokens labelled;
  // The first tokens of pairs of texts, and whether the second text follows the first: 0 if it
  // does, 1 if not.
  parallel::LabelledTokens pairs;
  RealTokens real;
  std::vector<PredictedTokens> predicted;  // by depth of the model
  // f32 (f64) [sources, T]: the part of each token's loss that counts for each source of examples;
  // undefined: losses are not logged by source.
  Tensor source_weights;
  Tensor sample_ids;  // i64 [B]: number of each sequence in the run, for dropout
  // i32 [T]: index within its sequence of the first token that each token's attention sees;
  // undefined: 0. Attention uses indices, independent of `positions`.
  Tensor segment_starts;
  // i32 [T]: index within its sequence of the last token that each token's attention sees; read by
  // two-sided attention only; undefined: the last of the sequence.
  Tensor segment_ends;
  // i32 [T]: indices within the encoder's text of the first and last token that each token's cross
  // attention sees; undefined: all of it.
  Tensor encoder_starts, encoder_ends;
  // Texts of different lengths, concatenated as one sequence: two-sided attention computes each by
  // itself, with the bits that it has alone. Only without gradients and bounds. Empty: the
  // sequences are the texts.
  std::vector<TextRun> texts;
  parallel::ContextTokens context_tokens;  // the tokens of all context-parallel ranks
  Continuation continuation;               // only without gradients and without segment_starts
  // Length of the texts including tokens held by a state; tables of rotary angles may depend on it
  // (nn/rotary.h). 0: the length of the sequences.
  int64_t context = 0;

  int64_t text_length() const { return context > 0 ? context : layout.length; }
  // Tokens of the rows that this rank holds outside the matrix products.
  kernels::RowTokens rows_of(const parallel::TensorParallel& tensor) const {
    kernels::RowTokens rows{.sample_ids = sample_ids,
                            .positions = context_tokens.indices(layout.rank)};
    if (!tensor.divides_tokens()) return rows;
    rows.first = tensor.tokens(layout.rows()).global_begin;
    rows.length = layout.held();
    return rows;
  }
  // All rows that this rank holds, for Tape::set_batch_rows().
  BatchRows all_rows() const {
    kernels::RowTokens tokens = rows_of({});
    tokens.length = layout.held();
    return {std::move(tokens), layout.rows()};
  }
};

}  // namespace megatron::nn
