// Tensors of modules that training changes without a gradient: a router's bias, running statistics,
// a history of largest values.
#pragma once

#include <functional>
#include <span>

#include "autograd/tape.h"
#include "comm/group.h"
#include "parallel/placement.h"

namespace megatron::nn {

// ParameterSpec, initialised and saved as a parameter is, and held whole by every data-parallel rank
// (ZeRO divides parameters alone). What forward observes of a step's tokens is added up in
// `observed`, over micro-batches by the module and over ranks by the step, which then calls
// `update`, once, after the optimizer's. A step that changes no weight changes no state.
struct ModuleState {
  parallel::ParameterSpec placed;  // its parameter is not trainable; the value is f32 (f64)
  // f32 (f64), zero when a step begins. Undefined unless the model is trained.
  Tensor observed;
  Shape observed_shape;  // of this rank's `observed`
  // Over the ranks that see other tokens: its replicas and, where `placed.partial`, those of that
  // group.
  comm::Reduce reduce = comm::Reduce::sum;
  // Sets the value from it and from what all ranks observed. On the stream, where meta has no data.
  std::function<void(const ModuleState&, Stream&)> update;

  const Tensor& value() const { return placed.parameter.value; }
  // Where forward adds what it sees; undefined in a recompute, in an evaluation, and where nothing
  // is trained: the module then observes nothing.
  Tensor observe(const Tape& tape) const {
    return tape.pass() == Pass::forward ? observed : Tensor();
  }
};

// What a module adds up in forward over the micro-batches of a step. It is zero when a step begins; nobody saves it.
struct StepSum {
  Shape shape;
  DType type;
  Tensor value;  // undefined unless the model is trained
};

// Gives the values memory, in the parameters' arena.
void allocate(std::span<ModuleState* const> states, Runtime& runtime);
// Their initial values, the same in any layout.
void initialize(std::span<ModuleState* const> states, uint64_t seed, Stream& stream);

}  // namespace megatron::nn
