// What a state-space layer (Mamba-2; Dao & Gu 2024) computes between its two projections: causal
// convolution, scan and gated norm. B sequences of S tokens, T = B * S; H heads of size P, G groups
// with states of size N, C = H P + 2 G N channels of the convolution.
#pragma once

#include "autograd/tape.h"
#include "kernels/gated_norm.h"
#include "kernels/state_scan.h"

namespace megatron::ops {

// Sizes of a state space, on this rank.
struct StateSpaceShape {
  int64_t heads = 0, head_size = 0, groups = 0, states = 0;

  int64_t width() const { return heads * head_size; }
  int64_t channels() const { return width() + 2 * groups * states; }
  int64_t projected() const { return width() + channels() + heads; }
  bool operator==(const StateSpaceShape&) const = default;
};

struct StateSpace {
  StateSpaceShape shape;
  Weight conv, conv_bias;    // [C,K]; [C] or none
  Weight a_log, dt_bias, d;  // f32 (f64) [H]
  Weight norm;               // [H P]; none for GateOrder::gate_only
  double min_step = 0, max_step = std::numeric_limits<double>::infinity();
  kernels::GateOrder order = kernels::GateOrder::gate_first;
  double eps = 1e-5;
};

// projected [T, 2 H P + 2 G N + H], each row [z | x | b | c | dt]; result [T, H P]. starts i32 [T]:
// index within its sequence of the first token of each token's document; undefined: 0. Saves
// `projected` and the output of the scan; backward computes the convolution again, and writes the
// gradient of `projected` into one tensor.
Var state_space(Tape& tape, const Var& projected, int64_t sequences, const StateSpace& space,
                const Tensor& starts);

// State of texts that are read in pieces (kernels/state_scan.h), and which pieces are read now.
struct StateSpaceSlots {
  Tensor tails;  // [slots,K-1,C]
  kernels::ScanSlots scan;
  Tensor positions, block_table;  // i32 [B,S], [B,blocks]
  int64_t block_size = 0;
};

// The same without gradients for pieces of texts; the bits are those of state_space() over whole
// texts. projected [B*S, ...]; out [B*S, H P], dense, is written.
void continue_state_space(const Tensor& projected, const StateSpace& space,
                          const StateSpaceSlots& slots, const Tensor& out, Tape& tape);

}  // namespace megatron::ops
