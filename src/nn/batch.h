// The part of a micro-batch through which no gradient flows.
#pragma once

#include "tensor/tensor.h"

namespace megatron::nn {

class SequenceState;

// A batch whose tokens go on after those that a state holds (SequenceState::next makes it).
struct Continuation {
  SequenceState* state = nullptr;  // borrowed; null: the batch's sequences begin with it
  int64_t first = 0;               // sequence b of the batch is sequence first + b of the state
  Tensor q_positions;              // i32 [B,S]: index of each new token within its sequence
  Tensor k_positions;              // i32 [B,keys]: 0, 1, ...; keys: enough for the longest sequence
};

// B sequences of S tokens, flattened to T = B * S.
struct Batch {
  int64_t sequences = 0, length = 0;
  Tensor tokens;        // i32 [T]
  Tensor positions;     // i32 [T]: of the position table or the rotary angles
  Tensor labels;        // i32 [T]; not read where the weight is 0
  Tensor targets;       // f32 (f64) [T]: in place of labels where scores are numbers
  Tensor loss_weights;  // f32 (f64) [T]: of each token's loss in the objective
  Tensor sample_ids;    // i64 [B]: number of each sequence in the run, for dropout
  // i32 [T]: index within its sequence of the first token that each token's attention sees;
  // undefined: 0. Attention goes by indices, whatever `positions` says.
  Tensor segment_starts;
  Continuation continuation;  // without gradients and without segment_starts only
  // Tokens of the texts that the batch goes on with, those that a state holds included: tables of rotary
  // angles may depend on it (nn/rotary.h). 0: length.
  int64_t context = 0;

  int64_t text_length() const { return context > 0 ? context : length; }
};

}  // namespace megatron::nn
