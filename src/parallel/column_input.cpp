#include "parallel/column_input.h"

namespace megatron::parallel {

Tensor ColumnInput::whole(Tape& tape, const Var& x, const TensorParallel& tp) {
  if (!tp.divides_tokens()) return x.value;
  return gathered_rows(tape, x.value, *tp.group, "column_linear, x", MemoryClass::communication);
}

Var ColumnInput::record(Tape& tape, const Var& x, const Tensor& whole) const {
  if (alone(tp_.group) || !x.needs_gradient()) return x;
  Node node{.name = "column_linear.x", .inputs = {x.id}, .dgrad = [](Backward& backward) {
              backward.attributes<ColumnInput>().pending_->dx.wait(backward.stream());
              if (backward.needs(0)) backward.set(0, backward.gradient(0));
            }};
  node.attributes = *this;
  return tape.record_one(std::move(node), whole);
}

void ColumnInput::begin_gather(Backward& backward) const {
  if (!tp_.divides_tokens()) return;
  const Tensor& x = backward.saved(0);
  pending_->x = communication_buffer(backward.tape(), {tp_.size() * x.size(0), x.size(1)},
                                     x.dtype(), "column_linear, x again");
  pending_->x_work =
      overlapped(tp_).all_gather(x, pending_->x, backward.stream(), "column_linear, x again");
  if (tp_.async == nullptr) pending_->x_work.wait(backward.stream());
}

Tensor ColumnInput::gathered(Backward& backward) const {
  if (!tp_.divides_tokens()) return backward.saved(0);
  if (!pending_->x.defined()) begin_gather(backward);
  pending_->x_work.wait(backward.stream());
  return pending_->x;
}

void ColumnInput::release() const {
  pending_->x_work = {};
  pending_->x = {};
}

Tensor ColumnInput::partial_gradient(Backward& backward, Shape shape, DType type) const {
  return Tensor::empty(backward.tape().runtime().arena(partial_memory(tp_)), shape, type,
                       "column_linear.dx");
}

// The sum is valid once the input's backward has waited.
void ColumnInput::begin_sum(Backward& backward, const Tensor& dx) const {
  if (alone(tp_.group)) return backward.set(0, dx);
  pending_->dx.begin(backward.tape(), dx, tp_, "column_linear, gradient");
  backward.set(0, pending_->dx.result);
}

}  // namespace megatron::parallel
