#include "training/step_graphs.h"

#include <utility>

#include "kernels/table.h"

namespace megatron::training {

using Way = CudaGraphRunner::Way;

StepGraphs::StepGraphs(Runners runners, bool in_parts, Runtime& runtime)
    : runners_(std::move(runners)),
      in_parts_(in_parts),
      runtime_(runtime),
      loss_(Tensor::empty(runtime.arena(MemoryClass::optimizer), {}, DType::f64, "step.loss")) {
  if (in_parts_) backward_memory_.emplace(runtime);
}

std::unique_ptr<StepGraphs::Slot> StepGraphs::make_slot() {
  std::unique_ptr<Slot> slot(new Slot{.runner{runners_.parameters, runtime_, runners_.gradients,
                                              runners_.warm_up, runners_.ranks, runners_.async}});
  if (in_parts_) slot->memory.emplace(runtime_);
  return slot;
}

void StepGraphs::copy(const Tensor& from, const Tensor& to) {
  kernels::table(runtime_.stream()).copy({.x = from, .out = to}, runtime_.stream());
}

// Creates a tensor whose address is fixed in captured work.
void StepGraphs::make_place(Tensor& place, const Pass& pass) {
  if (!place.defined()) place = pass.message("pipeline.recorded");
}

void StepGraphs::make_unless_replayed(const Pass& pass, const Tensor& input) {
  if (pass.slot.runner.way() == Way::replay) return;
  const Tensor made = pass.make(input);
  if (made.defined()) copy(made, outgoing_);
}

void StepGraphs::take_loss(const Pass& pass) {
  if (pass.slot.runner.way() != Way::eager) copy(loss_, pass.total);
}

// Copies the result of captured work to a message.
Tensor StepGraphs::sent(const Pass& pass) {
  Tensor message = pass.message("pipeline.sent");
  copy(outgoing_, message);
  return message;
}

Tensor StepGraphs::forward(const Pass& pass, const Tensor& input) {
  Slot& slot = pass.slot;
  std::optional<OwnArenas::Use> own;
  if (in_parts_) {
    for (Tensor* place : {&outgoing_, &gradient_}) make_place(*place, pass);
    if (input.defined()) {
      make_place(slot.received, pass);
      copy(input, slot.received);
    }
    own.emplace(*slot.memory, runtime_);
  }
  slot.runner.begin(pass.batch, {slot.received, outgoing_, gradient_}, pass.work, pass.recordable);
  make_unless_replayed(pass, input.defined() ? slot.received : Tensor());
  if (!in_parts_) return {};
  slot.runner.pause();
  own.reset();
  if (pass.sends) return sent(pass);
  take_loss(pass);
  return {};
}

Tensor StepGraphs::backward(const Pass& pass, const Tensor& gradient) {
  if (gradient.defined()) copy(gradient, gradient_);
  std::optional<OwnArenas::Use> own;
  if (in_parts_) {
    own.emplace(*backward_memory_, runtime_);
    pass.slot.runner.resume();
  }
  make_unless_replayed(pass, gradient.defined() ? gradient_ : Tensor());
  pass.slot.runner.end();
  own.reset();
  if (!in_parts_) take_loss(pass);
  return pass.sends ? sent(pass) : Tensor();
}

int64_t StepGraphs::backward_memory(MemoryClass memory_class) const {
  return backward_memory_ ? backward_memory_->high_water(memory_class) : 0;
}

}  // namespace megatron::training
