#include "autograd/tape.h"

#include <algorithm>

#include "autograd/other_batch_rows.h"
#include "base/error.h"

namespace megatron {

const Var& Bundle::operator[](std::string_view name) const {
  for (const auto& [key, var] : vars_)
    if (key == name) return var;
  throw InternalError(fmt::format("a bundle has no '{}'", name));
}

bool Bundle::contains(std::string_view name) const {
  for (const auto& [key, var] : vars_)
    if (key == name) return true;
  return false;
}

void Bundle::set(std::string_view name, Var var) {
  for (auto& [key, value] : vars_) {
    if (key == name) {
      value = std::move(var);
      return;
    }
  }
  vars_.emplace_back(name, std::move(var));
}

Tape::Tape(Runtime& runtime, Mode mode, const kernels::Table* table)
    : runtime_(runtime),
      mode_(mode),
      table_(table),
      pass_(mode == Mode::record ? Pass::forward : Pass::evaluate) {}

void Tape::clear() {
  while (!nodes_.empty()) nodes_.pop_back();
  deferred_.clear();
  stops_.clear();
  gradients_.clear();
  leaves_.clear();
  remade_.clear();
}

Tensor Tape::empty(Shape shape, DType dtype, std::string_view label) const {
  return Tensor::empty(runtime_.arena(MemoryClass::activations), shape, dtype, label);
}

Var Tape::leaf(Tensor value) {
  if (!recording()) return {std::move(value)};
  gradients_.emplace_back();
  leaves_.push_back(true);
  return {std::move(value), static_cast<int>(gradients_.size()) - 1};
}

// Roots without inputs (marks of spans, offload) act on other things than gradients.
bool Tape::differentiates(const Node& node) const {
  return node.trains || (node.root && node.inputs.empty()) ||
         std::ranges::any_of(node.inputs, [](int id) { return id >= 0; }) ||
         std::ranges::any_of(node.weights, &Weight::trainable);
}

std::vector<Var> Tape::record(Node node, std::vector<Tensor> outputs) {
  std::vector<Var> vars;
  vars.reserve(outputs.size());
  trains_ = trains_ || std::ranges::any_of(node.weights, &Weight::trainable);
  if (!recording() || !differentiates(node)) {
    for (Tensor& t : outputs) vars.emplace_back(std::move(t));
    return vars;
  }
  if (!remade_.empty()) {
    for (Saved& kept : node.saved)
      for (const int input : node.inputs)
        if (kept.kept() && kept.tensor().defined()) kept = saved(kept.tensor(), input);
  }
  node.outputs.clear();
  for (Tensor& t : outputs) {
    const int id = static_cast<int>(gradients_.size());
    gradients_.emplace_back();
    leaves_.push_back(false);
    node.outputs.push_back(id);
    vars.emplace_back(std::move(t), id);
  }
  node.rows = batch_rows_;
  nodes_.push_back(std::move(node));
  return vars;
}

// The Var is an input of the node that is being recorded, so its storage is alive and no other
// storage can have its address.
Saved Tape::saved(const Tensor& tensor, int var) const {
  const auto found = var < 0 ? remade_.end() : remade_.find(var);
  if (found == remade_.end() || found->second.storage != tensor.storage_id()) return tensor;
  std::shared_ptr<Source> source = found->second.source.lock();
  MG_ASSERT(source != nullptr);
  return {tensor, std::move(source), found->second.which};
}

void Tape::for_each_saved(size_t first, const std::function<void(Saved&)>& f) {
  for (size_t i = first; i < nodes_.size(); ++i)
    for (Saved& saved : nodes_[i].saved) f(saved);
}

GradSlot Tape::grad_slot(const Weight& weight) {
  if (!weight.trainable()) return {};
  Parameter::Use& use = weight.parameter->uses[static_cast<size_t>(weight.use)];
  if (!use.grad.defined() && gradient_listener_ != nullptr)
    gradient_listener_->gradient_begins(*weight.parameter);
  const float beta = use.started ? 1.0f : 0.0f;
  use.started = true;
  return {use.grad, beta};
}

void Tape::gradient_done(const Weight& weight) {
  Parameter& parameter = *weight.parameter;
  if (!parameter.trainable) return;
  const int before = parameter.micro_batches_final();
  Parameter::Use& use = parameter.uses[static_cast<size_t>(weight.use)];
  if (++use.done < use.ops) return;
  use.done = 0;
  ++use.micro_batches;
  if (parameter.micro_batches_final() > before && gradient_listener_ != nullptr) {
    gradient_listener_->gradient_final(parameter, before);
  }
}

void Tape::set_gradient(const Var& var, Tensor gradient) {
  MG_ASSERT(var.needs_gradient());
  accumulate(var.id, std::move(gradient));
}

Tensor Tape::gradient(const Var& var) const {
  MG_ASSERT(var.needs_gradient());
  return gradients_[static_cast<size_t>(var.id)];
}

void Tape::accumulate(int id, Tensor gradient) {
  if (id < 0) return;
  Tensor& slot = gradients_[static_cast<size_t>(id)];
  if (!slot.defined()) {
    slot = std::move(gradient);
    return;
  }
  // A gradient may be shared by two Vars (residual sums), so the sum is written to a new tensor.
  MG_ASSERT(slot.shape() == gradient.shape());
  Tensor sum = empty(slot.shape(), slot.dtype(), "gradient.sum");
  kernels().add({.a = slot, .b = gradient, .out = sum}, stream());
  slot = std::move(sum);
}

void Tape::run_wgrad(Node& node, std::span<const Tensor> output_gradients, BackwardPart part) {
  if (node.wgrad != nullptr) {
    const OtherBatchRows rows(*this, node.rows);
    Backward backward(*this, node, output_gradients, part);
    node.wgrad(backward);
  }
  for (const Weight& weight : node.weights) gradient_done(weight);
}

void Tape::backward(BackwardPart part) {
  MG_ASSERT(recording());
  if (part == BackwardPart::weight) {
    for (Deferred& d : deferred_) run_wgrad(d.node, d.output_gradients, part);
    deferred_.clear();
    return;
  }
  stops_.clear();
  while (!nodes_.empty()) run_last_node(part);
}

void Tape::backward_to_stop(BackwardPart part) {
  MG_ASSERT(recording() && part != BackwardPart::weight);
  const size_t end = stops_.empty() ? 0 : stops_.back();
  if (!stops_.empty()) stops_.pop_back();
  while (nodes_.size() > end) run_last_node(part);
}

// Runs the last node and drops it.
void Tape::run_last_node(BackwardPart part) {
  Node& node = nodes_.back();
  std::vector<Tensor> output_gradients;
  bool reached = node.root;
  for (const int id : node.outputs) {
    const auto index = static_cast<size_t>(id);
    output_gradients.push_back(leaves_[index] ? gradients_[index] : std::move(gradients_[index]));
    reached = reached || output_gradients.back().defined();
  }
  if (!reached) {
    // No gradient reaches the node: its weights still count as done, with a zero gradient for this
    // micro-batch.
    for (const Weight& weight : node.weights) gradient_done(weight);
    return nodes_.pop_back();
  }
  for (Saved& saved : node.saved) saved.restore(*this);
  if (node.dgrad != nullptr) {
    const OtherBatchRows rows(*this, node.rows);
    Backward backward(*this, node, output_gradients, part);
    node.dgrad(backward);
  }
  const bool has_weights = node.wgrad != nullptr;
  if (part == BackwardPart::all || !has_weights) {
    run_wgrad(node, output_gradients, part);
  } else {
    deferred_.push_back({std::move(node), std::move(output_gradients)});
  }
  nodes_.pop_back();
}

}  // namespace megatron
