// Tensors of modules that training changes without a gradient: a router's bias, running statistics,
// a history of maxima.
#pragma once

#include <functional>
#include <span>
#include <string_view>

#include "autograd/tape.h"
#include "comm/group.h"
#include "parallel/placement.h"

namespace megatron::nn {

// Names of the states that quantise a layer's operands begin with this.
inline constexpr std::string_view kQuantizerPrefix = "quantizer.";

// A ParameterSpec, initialized and saved like a parameter and replicated on every data-parallel
// rank (ZeRO divides only parameters). Observations of a step's tokens in forward (and backward)
// are accumulated in `observed`, over micro-batches by the module and over ranks by the step, which
// then calls `update` once, after the optimizer's update. A step that changes no weight changes no
// state.
struct ModuleState {
  // Its parameter is not trainable; the value is f32 (f64; f32 of training).
  parallel::ParameterSpec placed;
  // Sum of this step's observations: zero at its beginning. Undefined unless the model is trained.
  Tensor observed;
  Shape observed_shape;  // on this rank
  // Reduction over the ranks that see other tokens: its replicas and, if set, the ranks of the
  // group `placed.partial`.
  comm::Reduce reduce = comm::Reduce::sum;
  // True for a state that only training needs: checkpoints store it with the optimizer's state, not
  // with the model.
  bool of_training = false;
  // Sets the value from it and from the observations of all ranks. Runs on the stream; meta has no
  // data. Null: the state is frozen, and observes nothing.
  std::function<void(const ModuleState&, Stream&)> update;

  const Tensor& value() const { return placed.parameter.value; }
  // Tensor that forward adds its observations to; undefined in recompute, in evaluation and without
  // training: the module then observes nothing.
  Tensor observe(const Tape& tape) const {
    return tape.pass() == Pass::forward ? observed : Tensor();
  }
};

// A sum that a module accumulates in forward over the micro-batches of a step. It is zero at the
// beginning of a step and is not saved.
struct StepSum {
  Shape shape;
  DType type;
  Tensor value;  // undefined unless the model is being trained
};

// Allocates the values in the parameters' arena.
void allocate(std::span<ModuleState* const> states, Runtime& runtime);
// Sets the initial values, which are the same in any layout.
void initialize(std::span<ModuleState* const> states, uint64_t seed, Stream& stream);

}  // namespace megatron::nn
