#include "nn/module_state.h"

namespace megatron::nn {

void allocate(std::span<ModuleState* const> states, Runtime& runtime) {
  for (ModuleState* state : states) {
    parallel::ParameterSpec* const placed = &state->placed;
    parallel::allocate(std::span(&placed, 1), runtime);
  }
}

void initialize(std::span<ModuleState* const> states, uint64_t seed, Stream& stream) {
  for (ModuleState* state : states) parallel::initialize(state->placed, seed, stream);
}

}  // namespace megatron::nn
