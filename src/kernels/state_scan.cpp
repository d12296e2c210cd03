#include "kernels/state_scan.h"

#include "kernels/check_rules.h"

namespace megatron::kernels {
namespace {

void check_like(const Rules& rules, const Tensor& t, const Tensor& other, const char* rule) {
  rules.rows(t, other.rank(), rule);
  rules.require(t.shape() == other.shape() && t.dtype() == other.dtype(), rule);
}

// b [B,T,G,N] of the type of x [B,T,H,P], and what turns dt into steps.
template <class Args>
void check_steps(const Rules& rules, const Args& args) {
  rules.rows(args.x, 4, "x [B,T,H,P] of a floating type, last dim contiguous");
  rules.require(args.x.size(2) > 0 && args.x.size(3) > 0, "H > 0, P > 0");
  const DType type = args.x.dtype();
  const int64_t sequences = args.x.size(0), tokens = args.x.size(1), heads = args.x.size(2);
  rules.rows(args.dt, 3, "dt [B,T,H], last dim contiguous");
  rules.require(args.dt.shape() == Shape({sequences, tokens, heads}) && args.dt.dtype() == type,
                "dt [B,T,H] of the type of x");
  rules.rows(args.b, 4, "b [B,T,G,N], last dim contiguous");
  rules.require(args.b.size(0) == sequences && args.b.size(1) == tokens && args.b.size(2) > 0 &&
                    args.b.size(3) > 0 && heads % args.b.size(2) == 0 && args.b.dtype() == type,
                "b [B,T,G,N] of the type of x, N > 0, G divides H");
  const StateScanNumbers& n = args.numbers;
  for (const Tensor* t : {&n.a_log, &n.dt_bias, &n.d})
    rules.dense(*t, {heads}, accumulator(type), "a_log, dt_bias, d f32 (f64) [H]");
  rules.require(n.min_step >= 0 && n.min_step <= n.max_step, "0 <= min_step <= max_step");
}

template <class Args>
void check_inputs(const Rules& rules, const Args& args) {
  check_steps(rules, args);
  check_like(rules, args.c, args.b, "c as b");
}

template <class Args>
Shape state_shape(const Args& args) {
  return {args.x.size(0), args.x.size(2), args.x.size(3), args.b.size(3)};
}
template <class Args>
void check_state(const Rules& rules, const Args& args, const Tensor& state, const char* rule) {
  rules.optional(state, state_shape(args), accumulator(args.x.dtype()), rule);
}

template <class Args>
void check_starts(const Rules& rules, const Args& args) {
  rules.optional(args.starts, {args.x.size(0), args.x.size(1)}, DType::i32, "starts i32 [B,T]");
}

}  // namespace

void check(const StateScanArgs& args) {
  const Rules rules("state_scan", args);
  check_inputs(rules, args);
  check_starts(rules, args);
  check_state(rules, args, args.initial, "initial f32 (f64) [B,H,P,N]");
  check_like(rules, args.out, args.x, "out as x");
}

void check(const StateScanBackwardArgs& args) {
  const Rules rules("state_scan_backward", args);
  check_inputs(rules, args);
  check_starts(rules, args);
  check_state(rules, args, args.initial, "initial f32 (f64) [B,H,P,N]");
  check_state(rules, args, args.dfinal, "dfinal f32 (f64) [B,H,P,N]");
  check_like(rules, args.dout, args.x, "dout as x");
  check_like(rules, args.dx, args.x, "dx as x");
  check_like(rules, args.ddt, args.dt, "ddt as dt");
  check_like(rules, args.db, args.b, "db as b");
  check_like(rules, args.dc, args.b, "dc as b");
  for (const Accumulate* sum : {&args.da_log, &args.ddt_bias, &args.dd})
    rules.optional(*sum, {args.x.size(2)}, accumulator(args.x.dtype()),
                   "da_log, ddt_bias, dd f32 (f64) [H]");
}

void check(const StateCarryArgs& args) {
  const Rules rules("state_carry", args);
  check_steps(rules, args);
  check_starts(rules, args);
  const DType sums = accumulator(args.x.dtype());
  rules.dense(args.state, state_shape(args), sums, "state f32 (f64) [B,H,P,N]");
  rules.optional(args.decay, {args.x.size(0), args.x.size(2)}, sums, "decay f32 (f64) [B,H]");
}

void check(const StateScanContinuedArgs& args) {
  const Rules rules("state_scan_continued", args);
  check_inputs(rules, args);
  const int64_t heads = args.x.size(2), width = args.x.size(3), groups = args.b.size(2),
                states = args.b.size(3);
  const DType type = args.x.dtype(), sums = accumulator(type);
  rules.dense(args.positions, {args.x.size(0), args.x.size(1)}, DType::i32, "positions i32 [B,S]");
  rules.indices(args.block_table, 2, "block_table i32 [B,blocks]");
  rules.require(args.block_table.size(0) == args.x.size(0), "block_table i32 [B,blocks]");
  rules.require(args.block_size > 0 && args.block_size % kScanChunk == 0,
                "block_size is a multiple of kScanChunk");
  rules.wide(args.slots.state, 4, "slot_state [slots,H,P,N]");
  const int64_t slots = args.slots.state.size(0);
  rules.dense(args.slots.state, {slots, heads, width, states}, sums,
              "slot_state f32 (f64) [slots,H,P,N]");
  rules.dense(args.slots.x, {slots, kScanChunk, heads, width}, type,
              "slot_x [slots,kScanChunk,H,P] of the type of x");
  rules.dense(args.slots.b, {slots, kScanChunk, groups, states}, type,
              "slot_b [slots,kScanChunk,G,N] of the type of x");
  rules.dense(args.slots.steps, {slots, kScanChunk, heads}, sums,
              "slot_steps f32 (f64) [slots,kScanChunk,H]");
  check_like(rules, args.out, args.x, "out as x");
}

}  // namespace megatron::kernels
