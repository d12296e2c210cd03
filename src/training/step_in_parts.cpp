// Micro-batches of a pipeline that are recorded: forward and backward are a part each. What comes
// from other stages and goes to them is copied between the parts, since recorded work reads and
// writes the same places every time.
#include "kernels/table.h"
#include "training/step.h"

namespace megatron::training {

void TrainStep::copy(const Tensor& from, const Tensor& to) {
  kernels::table(runtime_.stream()).copy({.x = from, .out = to}, runtime_.stream());
}

// Where one rests that recorded work knows the address of.
void TrainStep::rest(Tensor& place, int micro_batch) {
  if (!place.defined()) place = boundary(micro_batch, "pipeline.recorded");
}

// What recorded work has written, for a message.
Tensor TrainStep::sent(int micro_batch) {
  Tensor message = boundary(micro_batch, "pipeline.sent");
  copy(outgoing_, message);
  return message;
}

Tensor TrainStep::forward_in_parts(InFlight& slot, const models::Stage& stage, const Tensor& input,
                                   const nn::Batch& batch) {
  const int chunk = action_->chunk, micro_batch = action_->micro_batch;
  for (Tensor* place : {&outgoing_, &gradient_}) rest(*place, micro_batch);
  if (input.defined()) {
    rest(slot.received, micro_batch);
    copy(input, slot.received);
  }
  {
    const OwnArenas::Use own(*slot.memory, runtime_);
    const auto way =
        slot.recorded->begin(batch, {slot.received, outgoing_, gradient_},
                             {.chunk = chunk, .first = micro_batch == 0}, recordable(micro_batch));
    if (way != CudaGraphRunner::Way::replay) {
      const Tensor made =
          forward_of(slot, stage, micro_batch, input.defined() ? slot.received : Tensor(), batch);
      if (made.defined()) copy(made, outgoing_);
    }
    slot.recorded->pause();
  }
  if (!stage.part().head) return sent(micro_batch);
  take_loss(slot, micro_batch);
  return {};
}

Tensor TrainStep::backward_in_parts(InFlight& slot, int micro_batch, const Tensor& gradient) {
  if (gradient.defined()) copy(gradient, gradient_);
  {
    const OwnArenas::Use own(*backward_memory_, runtime_);
    slot.recorded->resume();
    if (slot.recorded->way() != CudaGraphRunner::Way::replay) {
      const Tensor made = backward_of(slot, gradient.defined() ? gradient_ : Tensor(), true);
      if (made.defined()) copy(made, outgoing_);
    }
    slot.recorded->end();
  }
  const models::Stage& stage = *chunks_[static_cast<size_t>(action_->chunk)];
  return stage.part().embedding ? Tensor() : sent(micro_batch);
}

}  // namespace megatron::training
