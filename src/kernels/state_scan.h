// State spaces whose decay is one number per head and token (Mamba-2; Dao & Gu 2024).
#pragma once

#include <limits>

#include "kernels/access.h"

namespace megatron::kernels {

// Tokens of a chunk. Inside a chunk, counted from the sequence's start, outputs are products of a
// masked matrix with the inputs; from chunk to chunk the state is handed on (Dao & Gu 2024, section
// 6).
inline constexpr int64_t kScanChunk = 64;

// Numbers of a state space with H heads. Step of token t in head h: step = min(max(softplus(dt[t,h]
// + dt_bias[h]), min_step), max_step); decay = exp(-step * exp(a_log[h])). All f32 (f64) [H],
// contiguous.
struct StateScanNumbers {
  Tensor a_log, dt_bias, d;
  double min_step = 0, max_step = std::numeric_limits<double>::infinity();
};

// S_t = decay_t S_{t-1} + step_t x_t b_t^T, y_t = S_t c_t + d[h] x_t, for the head h of each of B
// sequences, with the state S [P,N], 0 before the first token of a document. Heads [h G / H] share
// b and c with the others of their group. x, out [B,T,H,P]; dt [B,T,H]; b, c [B,T,G,N], G divides
// H; last dim contiguous, other strides free, one floating type. starts i32 [B,T]: index in the
// sequence of the first token of each token's document; undefined: 0. initial f32 (f64) [B,H,P,N],
// contiguous: the state before the first token, of documents that began before it, whose starts are
// negative, or of the only one without starts; undefined: 0. States and sums in f32 (f64);
// operands of the products, which are those by chunks, may be rounded to the type of x. The bits of
// a token's result do not depend on the tokens after it, on other sequences or on the number of
// threads. out does not overlap an input.
struct StateScanArgs {
  Tensor x, dt, b, c;
  StateScanNumbers numbers;
  Tensor starts, initial, out;
};

// Gradients of x, dt, b and c, of their shapes, last dim contiguous, other strides free; and of the
// numbers, f32 (f64) [H], sums over b and t in a fixed order. A step passes the gradient to dt
// where min_step <= softplus <= max_step. Undefined sums are not computed. dfinal, like initial:
// the gradient of the state after the last token; undefined: 0.
struct StateScanBackwardArgs {
  Tensor x, dt, b, c;
  StateScanNumbers numbers;
  Tensor starts, initial, dout, dfinal;
  Tensor dx, ddt, db, dc;
  Accumulate da_log, ddt_bias, dd;
};

// What the tokens of a sequence add to a state that passes through it, so that sequences which
// follow each other can be scanned at the same time: state = sum over t of w_t x_t b_t^T, f32 (f64)
// [B,H,P,N], and decay f32 (f64) [B,H], the product of all decays, 0 if a document begins in the
// sequence; undefined: not computed. Contiguous. Inputs as in StateScanArgs.
//   Forward, the state after the last token is decay * initial + state: w_t = step_t times the
//   decays after t, of the last document; 0 for tokens of earlier ones.
//   Backward (gradient), with x = dout and b = c, the gradient of the state before the first token
//   is decay * dfinal + state: w_t is the product of the decays up to t, for tokens of a document
//   that began before the sequence; 0 for others.
struct StateCarryArgs {
  Tensor x, dt, b;
  StateScanNumbers numbers;
  Tensor starts;
  bool gradient = false;
  Tensor state, decay;
};

// The state of a text that is read in pieces, in slots: `state` [slots,H,P,N] f32 (f64) before the
// chunk of the text's next token; and of the tokens of this chunk so far, x [slots,kScanChunk,H,P]
// and b [slots,kScanChunk,G,N] of the type of x, and the steps f32 (f64) [slots,kScanChunk,H]. All
// contiguous. Before the first chunk the state is 0 and not read. After the last token of a chunk,
// `state` is that after it and the rest is unused. Of a chunk that a piece holds whole only the
// state is written; of another one also the rows of the piece's tokens, even if they end it.
struct ScanSlots {
  Tensor state, x, b, steps;
};

// The same as StateScanArgs, with the same bits, for texts that are read in pieces. x, out
// [B,S,H,P] and the others are the tokens with the indices positions[b,:] i32 [B,S], ascending by
// one, of B texts; -1: padding, whose out is 0. Slots are read and written as in
// CausalConvContinuedArgs; block_size is a multiple of kScanChunk.
struct StateScanContinuedArgs {
  Tensor x, dt, b, c;
  StateScanNumbers numbers;
  Tensor positions, block_table;  // i32 [B,S], [B,blocks]
  int64_t block_size = 0;
  ScanSlots slots;
  Tensor out;
};

void check(const StateScanArgs& args);
void check(const StateScanBackwardArgs& args);
void check(const StateScanContinuedArgs& args);
void check(const StateCarryArgs& args);

template <class Args, class F>
void visit_scan_inputs(Args& a, F&& f) {
  f("x", Access::read, a.x);
  f("dt", Access::read, a.dt);
  f("b", Access::read, a.b);
  f("c", Access::read, a.c);
  f("a_log", Access::read, a.numbers.a_log);
  f("dt_bias", Access::read, a.numbers.dt_bias);
  f("d", Access::read, a.numbers.d);
}
template <class F>
void visit(StateScanArgs& a, F&& f) {
  visit_scan_inputs(a, f);
  f("starts", Access::read, a.starts);
  f("initial", Access::read, a.initial);
  f("out", Access::write, a.out);
}
template <class F>
void visit(StateScanBackwardArgs& a, F&& f) {
  visit_scan_inputs(a, f);
  f("starts", Access::read, a.starts);
  f("initial", Access::read, a.initial);
  f("dout", Access::read, a.dout);
  f("dfinal", Access::read, a.dfinal);
  f("dx", Access::write, a.dx);
  f("ddt", Access::write, a.ddt);
  f("db", Access::write, a.db);
  f("dc", Access::write, a.dc);
  f("da_log", written(a.da_log.beta), a.da_log.out);
  f("ddt_bias", written(a.ddt_bias.beta), a.ddt_bias.out);
  f("dd", written(a.dd.beta), a.dd.out);
}
template <class F>
void visit(StateScanContinuedArgs& a, F&& f) {
  visit_scan_inputs(a, f);
  f("positions", Access::read, a.positions);
  f("block_table", Access::read, a.block_table);
  f("slot_state", Access::update, a.slots.state);
  f("slot_x", Access::update, a.slots.x);
  f("slot_b", Access::update, a.slots.b);
  f("slot_steps", Access::update, a.slots.steps);
  f("out", Access::write, a.out);
}
template <class F>
void visit(StateCarryArgs& a, F&& f) {
  f("x", Access::read, a.x);
  f("dt", Access::read, a.dt);
  f("b", Access::read, a.b);
  f("a_log", Access::read, a.numbers.a_log);
  f("dt_bias", Access::read, a.numbers.dt_bias);
  f("d", Access::read, a.numbers.d);
  f("starts", Access::read, a.starts);
  f("state", Access::write, a.state);
  f("decay", Access::write, a.decay);
}

}  // namespace megatron::kernels
