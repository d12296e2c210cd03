// What a state-space layer (Mamba-2; Dao & Gu 2024) computes between its two projections: causal
// convolution, scan and gated norm. B sequences of S tokens, T = B * S; H heads of size P, G groups
// with states of size N, C = H P + 2 G N channels of the convolution.
#pragma once

#include <memory>
#include <span>

#include "autograd/tape.h"
#include "kernels/gated_norm.h"
#include "kernels/state_scan.h"

namespace megatron::ops {

// Sizes of a state space, on this rank.
struct StateSpaceShape {
  int64_t heads = 0, head_size = 0, groups = 0, states = 0;
  // Ranks that share a group, whose heads they divide: each has a part of the columns of b and c.
  int64_t sharing = 1;

  int64_t width() const { return heads * head_size; }
  int64_t group_columns() const { return groups * states / sharing; }  // of b, and of c
  int64_t channels() const { return width() + 2 * group_columns(); }
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

// What ranks exchange that share a state space's groups, its heads, or its sequences
// (parallel/state_space_ranks.h). Every rank makes the same calls.
class StateSpaceExchange {
 public:
  virtual ~StateSpaceExchange() = default;

  // Columns of rows [T, ...]: `count` heads or groups of `size` columns each.
  struct Columns {
    int64_t count, size;
  };
  // The ranks among which sequences' heads are divided, while each rank holds some of their tokens,
  // and this one's number. 1: heads are not exchanged for tokens.
  virtual int head_ranks() const = 0;
  virtual int head_rank() const = 0;
  // Rows [T, all columns] of the tokens that this rank holds become those of whole sequences, with
  // its share of the heads and groups; ranks share groups of which there are fewer. to_tokens is
  // the inverse, which adds up what the ranks have of shared groups.
  virtual Tensor to_heads(const Tensor& rows, std::span<const Columns> columns,
                          Tape& tape) const = 0;
  virtual Tensor to_tokens(const Tensor& rows, std::span<const Columns> columns,
                           Tape& tape) const = 0;
  // Document starts of those whole sequences; undefined: 0.
  virtual Tensor whole_starts() const = 0;

  // Runs of consecutive tokens of each sequence that this rank scans, while other ranks scan
  // others; 1: it scans whole sequences. Rows of tensors by run are [runs() * B, ...].
  virtual int64_t runs() const = 0;
  // Document starts counted from the first token of each run, and from `halo` tokens before it;
  // undefined: a document fills each sequence.
  virtual Tensor run_starts() const = 0;
  virtual Tensor extended_starts() const = 0;
  virtual int64_t halo() const = 0;
  // The `count` tokens before each run, [runs,count,C], 0 before a sequence; x [runs,L,C], count <=
  // L.
  virtual Tensor tokens_before(const Tensor& x, int64_t count, Tape& tape) const = 0;
  // Adds their gradients to those of the runs that have them, [runs,L,C].
  virtual void give_back(const Tensor& dbefore, const Tensor& dx, Tape& tape) const = 0;
  // The states before each run, from what each adds to them (kernels::StateCarryArgs); or the
  // gradients of the states after each. [runs,H,P,N] and [runs,H].
  virtual Tensor handed_on(const Tensor& state, const Tensor& decay, bool gradient,
                           Tape& tape) const = 0;

  // b and c [T, 2 N] of the group that this rank shares, from its part of their columns (each
  // group_columns()); and the gradients of its part, added up over the ranks that share the group.
  virtual Tensor whole_group(const Tensor& parts, Tape& tape) const = 0;
  virtual Tensor part_of_group(const Tensor& dwhole, Tape& tape) const = 0;
  // Adds up sums [T,1] over the ranks that share this rank's group, in place.
  virtual void add_up(const Tensor& sums, Tape& tape) const = 0;
};

// projected [T, 2 H P + 2 G N + H], each row [z | x | b | c | dt]; result [T, H P]. starts i32 [T]:
// index within its sequence of the first token of each token's document; undefined: 0. exchange:
// null if this rank has whole sequences and groups. Saves `projected` and the output of the scan,
// and if heads are exchanged for tokens what it has received; backward computes the convolution
// again, and writes the gradient of `projected` into one tensor.
Var state_space(Tape& tape, const Var& projected, int64_t sequences, const StateSpace& space,
                const Tensor& starts, std::shared_ptr<const StateSpaceExchange> exchange = {});

// State of texts that are read in pieces (kernels/state_scan.h), and which pieces are read now.
struct StateSpaceSlots {
  Tensor tails;  // [slots,K-1,C]
  kernels::ScanSlots scan;
  Tensor positions, block_table;  // i32 [B,S], [B,blocks]
  int64_t block_size = 0;
};

// The same without gradients for pieces of texts; the bits are those of state_space() over whole
// texts. projected [B*S, ...]; out [B*S, H P], dense, is written. exchange: for shared groups.
void continue_state_space(const Tensor& projected, const StateSpace& space,
                          const StateSpaceSlots& slots, const Tensor& out, Tape& tape,
                          const StateSpaceExchange* exchange = nullptr);

}  // namespace megatron::ops
