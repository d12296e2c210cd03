// A state space with a decay per head (Mamba-2; Dao & Gu 2024), which replaces attention.
#pragma once

#include <string>
#include <vector>

#include "nn/batch.h"
#include "nn/linear.h"
#include "nn/sequence_state.h"
#include "parallel/state_space_ranks.h"

namespace megatron::nn {

struct StateSpaceConfig {
  int64_t heads = 0, head_size = 64;
  int64_t groups = 8;    // of heads that share b and c
  int64_t states = 128;  // numbers of a head's state for each of its head_size inputs
  int64_t conv_width = 4;
  bool conv_bias = true;
  bool bias = false, output_bias = false;  // of the projections
  double min_step = 0, max_step = 0;       // limits of a step; max_step 0: none
  // Steps to which dt_bias is initialized: from the first to the second, and at least the third.
  double initial_min_step = 1e-3, initial_max_step = 0.1, initial_step_floor = 1e-4;
  kernels::GateOrder order = kernels::GateOrder::gate_first;
  double norm_epsilon = 1e-5;
  // Factors of z, x, b, c and dt in what the input projection gives; empty: 1.
  std::vector<double> multipliers;

  bool operator==(const StateSpaceConfig&) const = default;
  int64_t width() const { return heads * head_size; }
  int64_t channels() const { return width() + 2 * groups * states; }
  // Rows of the input projection's blocks: z, x, b, c and dt.
  std::vector<int64_t> blocks() const {
    return {width(), width(), groups * states, groups * states, heads};
  }
  int64_t projected() const { return 2 * width() + 2 * groups * states + heads; }
};

// Throws Error naming the numbers and flags if tensor-parallel ranks cannot divide the heads and
// groups, or context-parallel ranks that exchange heads for tokens cannot divide those of a
// tensor-parallel rank.
void check_division(const StateSpaceConfig& config, int tensor_ranks,
                    const parallel::ContextParallel& context);

// y = out_proj norm(scan(conv(in_proj x)), z) with the parameters <name>.in_proj.weight [2 H P + 2
// G N + H, hidden] = [z | x | b | c | dt] and .bias, .conv.weight [C,1,K] and .bias of the C
// channels of [x | b | c], .a_log, .dt_bias and .d [H] in f32 (f64), .norm.weight [H P],
// .out_proj.weight [hidden, H P] and .bias. Tensor-parallel ranks hold equal shares of each block:
// of the heads, and of the groups, or of the columns of a group whose heads they divide; these
// ranks gather its b and c after the convolution. Context-parallel ranks divide a sequence as
// parallel/state_space_ranks.h says. Packed documents do not affect each other.
class StateSpace {
 public:
  struct Place {
    int64_t hidden = 0;
    int64_t layer = 0;  // in a SequenceState
    int64_t index = 0;  // of the layer in the model
    parallel::Init init, output_init;
  };
  StateSpace(Builder& builder, const std::string& name, const StateSpaceConfig& config,
             const Place& place);
  Var operator()(Tape& tape, const Var& x_TH, const Batch& batch) const;
  // A sequence's state: the last inputs of the convolution, and the scan's slots
  // (kernels/state_scan.h).
  std::vector<SlotTensor> slot() const;

 private:
  Var continued(Tape& tape, const Tensor& projected, const Continuation& at) const;

  StateSpaceConfig config_;  // for all ranks
  Place place_;
  DType type_;
  parallel::TensorParallel tensor_;
  parallel::ContextParallel context_;
  ColumnLinear in_proj_;
  ops::StateSpace space_;  // of this rank
  RowLinear out_proj_;
};

}  // namespace megatron::nn
