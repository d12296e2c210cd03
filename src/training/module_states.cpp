#include "training/module_states.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "kernels/table.h"

namespace megatron::training {

ModuleStates::ModuleStates(std::span<models::Stage* const> chunks, const parallel::Ranks& ranks,
                           Runtime& runtime)
    : ranks_(ranks), runtime_(runtime) {
  for (const models::Stage* chunk : chunks) {
    states_.insert(states_.end(), chunk->states().begin(), chunk->states().end());
    step_sums_.insert(step_sums_.end(), chunk->step_sums().begin(), chunk->step_sums().end());
  }
  for (nn::StepSum* sum : step_sums_)
    sum->value = Tensor::empty(runtime.arena(MemoryClass::gradients), sum->shape, sum->type,
                               "sum of a step");
  nn::allocate(states_, runtime);
  std::ranges::copy_if(states_, std::back_inserter(updated_),
                       [](const nn::ModuleState* state) { return state->update != nullptr; });
  if (updated_.empty()) return;
  std::vector<int64_t> begins;
  for (const nn::ModuleState* state : updated_) {
    Buffer& buffer = buffer_of(*state);
    begins.push_back(buffer.elements);
    buffer.elements += state->observed_shape.elements();
  }
  for (Buffer& buffer : buffers_)
    buffer.memory = Tensor::empty(runtime.arena(MemoryClass::gradients), {buffer.elements},
                                  buffer.type, "observed by modules");
  for (size_t i = 0; i < updated_.size(); ++i) {
    const Shape& shape = updated_[i]->observed_shape;
    updated_[i]->observed =
        buffer_of(*updated_[i]).memory.slice(0, begins[i], shape.elements()).view(shape);
  }
}

ModuleStates::Buffer& ModuleStates::buffer_of(const nn::ModuleState& state) {
  const auto found = std::ranges::find_if(buffers_, [&](const Buffer& buffer) {
    return buffer.reduce == state.reduce && buffer.type == state.value().dtype() &&
           buffer.partial == state.placed.partial && buffer.expert == state.placed.is_expert();
  });
  if (found != buffers_.end()) return *found;
  return buffers_.emplace_back(Buffer{.reduce = state.reduce,
                                      .type = state.value().dtype(),
                                      .partial = state.placed.partial,
                                      .expert = state.placed.is_expert()});
}

void ModuleStates::begin_step() {
  Stream& stream = runtime_.stream();
  for (const Buffer& buffer : buffers_)
    kernels::table(stream).fill({.out = buffer.memory, .value = 0}, stream);
  for (const nn::StepSum* sum : step_sums_)
    kernels::table(stream).fill({.out = sum->value, .value = 0}, stream);
}

void ModuleStates::update_step() {
  Stream& stream = runtime_.stream();
  for (const Buffer& buffer : buffers_) {
    comm::Group* const partial = buffer.partial ? ranks_.modules().group(*buffer.partial) : nullptr;
    if (partial != nullptr)
      partial->all_reduce(buffer.memory, buffer.reduce, stream, "step.states, module's ranks")
          .wait(stream);
    comm::Group& replicas = buffer.expert ? ranks_.expert_data() : ranks_.replicas();
    replicas.all_reduce(buffer.memory, buffer.reduce, stream, "step.states").wait(stream);
  }
  for (const nn::ModuleState* state : updated_) state->update(*state, stream);
}

}  // namespace megatron::training
