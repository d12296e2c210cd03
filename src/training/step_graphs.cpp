#include "training/step_graphs.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "kernels/table.h"

namespace megatron::training {

using parallel::Payload;
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

void StepGraphs::copy(const Payload& from, const Payload& to) {
  MG_ASSERT(from.size() == to.size());
  for (size_t i = 0; i < from.size(); ++i) copy(from[i], to[i]);
}

// Returns memory at an address that is fixed in captured work: that of earlier passes with tensors
// of the same forms.
Payload& StepGraphs::place(Places& places, const Pass& pass,
                           std::span<const models::TensorForm> forms) {
  for (Payload& place : places)
    if (std::ranges::equal(place, forms, [](const Tensor& tensor, const models::TensorForm& form) {
          return tensor.shape() == form.shape && tensor.dtype() == form.type;
        }))
      return place;
  return places.emplace_back(pass.message(forms, "pipeline.recorded"));
}

void StepGraphs::make_unless_replayed(const Pass& pass, const Payload& input, const Payload& out) {
  if (pass.slot.runner.way() == Way::replay) return;
  const Payload made = pass.make(input);
  if (!made.empty()) copy(made, out);
}

void StepGraphs::take_loss(const Pass& pass) {
  if (pass.slot.runner.way() != Way::eager) copy(loss_, pass.total);
}

// Copies the result of captured work to a message.
Payload StepGraphs::sent(const Pass& pass, std::span<const models::TensorForm> forms) {
  Payload message = pass.message(forms, "pipeline.sent");
  copy(place(outgoing_, pass, forms), message);
  return message;
}

Payload StepGraphs::forward(const Pass& pass, const Payload& input) {
  Slot& slot = pass.slot;
  std::optional<OwnArenas::Use> own;
  Payload received, out;
  std::vector<Tensor> fixed;
  const auto fix = [&](const Payload& payload) {
    fixed.insert(fixed.end(), payload.begin(), payload.end());
  };
  if (in_parts_) {
    out = place(outgoing_, pass, pass.exit);
    received = place(slot.received, pass, pass.entry);
    copy(input, received);
    fix(received);
    fix(out);
    fix(place(outgoing_, pass, pass.entry));
    fix(place(gradients_, pass, pass.exit));
    own.emplace(*slot.memory, runtime_);
  }
  slot.runner.begin(pass.batch, fixed, pass.work, pass.recordable);
  make_unless_replayed(pass, received, out);
  if (!in_parts_) return {};
  slot.runner.pause();
  own.reset();
  if (pass.sends) return sent(pass, pass.exit);
  take_loss(pass);
  return {};
}

Payload StepGraphs::backward(const Pass& pass, const Payload& gradient) {
  std::optional<OwnArenas::Use> own;
  Payload of_output, out;
  if (in_parts_) {
    out = place(outgoing_, pass, pass.entry);
    of_output = place(gradients_, pass, pass.exit);
    if (!gradient.empty()) copy(gradient, of_output);
    own.emplace(*backward_memory_, runtime_);
    pass.slot.runner.resume();
  }
  make_unless_replayed(pass, gradient.empty() ? Payload() : of_output, out);
  pass.slot.runner.end();
  own.reset();
  if (!in_parts_) take_loss(pass);
  return pass.sends ? sent(pass, pass.entry) : Payload();
}

int64_t StepGraphs::backward_memory(MemoryClass memory_class) const {
  return backward_memory_ ? backward_memory_->high_water(memory_class) : 0;
}

}  // namespace megatron::training
