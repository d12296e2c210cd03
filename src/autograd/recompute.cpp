// Recompute: a part of forward for which only the input is kept, and which backward runs again.
#include <algorithm>
#include <memory>

#include "autograd/tape.h"
#include "base/error.h"

namespace megatron {

// State shared by its node and the nodes that read a remade output.
class Tape::Stretch final : public Source {
 public:
  Stretch(Tape& tape, const Span* span, const SpanFunction& forward)
      : span_(span == nullptr ? nullptr : std::make_shared<const Span>(*span)),
        forward_(forward),
        listeners_(tape.span_listeners_),
        batch_rows_(tape.batch_rows_),
        gradient_listener_(tape.gradient_listener_) {}

  Once& once() { return once_; }
  void add_input(const std::string& name, Saved saved, bool needs_gradient) {
    inputs_.push_back({name, std::move(saved), needs_gradient});
  }
  void add_output(const std::string& name, bool remade) { outputs_.push_back({name, remade, {}}); }

  Tensor bring_back(size_t which, Tape& tape) override {
    run(tape);
    return outputs_[which].var.value;
  }

  void dgrad(Backward& backward) {
    run(backward.tape());
    for (size_t i = 0; i < outputs_.size(); ++i) {
      if (backward.gradient(i).defined() && outputs_[i].var.needs_gradient())
        tape_->set_gradient(outputs_[i].var, backward.gradient(i));
      outputs_[i].var.value = {};
    }
    tape_->backward(backward.part());
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (!inputs_[i].needs_gradient) continue;
      if (Tensor gradient = tape_->gradient(inputs_[i].var); gradient.defined())
        backward.set(i, std::move(gradient));
    }
    inputs_.clear();
    if (backward.part() == BackwardPart::all) tape_.reset();
  }
  void wgrad() {
    if (tape_ == nullptr) return;
    tape_->backward(BackwardPart::weight);
    tape_.reset();
  }

 private:
  struct Input {
    std::string name;
    Saved saved;
    bool needs_gradient;
    Var var = {};  // on tape_
  };
  struct Output {
    std::string name;
    bool remade;
    Var var;  // on tape_; has its value while it is recomputed
  };

  // Runs forward again, once.
  void run(Tape& outer) {
    if (tape_ != nullptr) return;
    tape_ = std::make_unique<Tape>(outer.runtime_, Mode::record, &outer.kernels());
    tape_->gradient_listener_ = gradient_listener_;
    tape_->span_listeners_ = listeners_;
    tape_->pass_ = Pass::recompute;
    tape_->batch_rows_ = batch_rows_;
    tape_->made_ = &once_;
    Bundle in;
    for (Input& input : inputs_) {
      input.saved.restore(outer);
      const Tensor& value = input.saved.tensor();
      input.var = input.needs_gradient ? tape_->leaf(value) : Var(value);
      in.set(input.name, input.var);
      input.saved = Tensor();
      input.var.value = {};
    }
    if (span_ != nullptr) tape_->tell(*span_, Pass::recompute, true);
    const Bundle out = forward_(*tape_, in);
    if (span_ != nullptr) tape_->tell(*span_, Pass::recompute, false);
    for (Output& output : outputs_) {
      output.var = out[output.name];
      if (!output.remade) output.var.value = {};
    }
  }

  std::shared_ptr<const Span> span_;  // null: spans inside are reported
  SpanFunction forward_;
  std::vector<SpanListener*> listeners_;
  std::shared_ptr<const BatchRows> batch_rows_;
  GradientListener* gradient_listener_;
  std::vector<Input> inputs_;
  std::vector<Output> outputs_;
  Once once_;
  std::unique_ptr<Tape> tape_;  // from run() until all gradients are computed
};

Bundle Tape::record_stretch(const Span* span, const Bundle& in, const SpanFunction& forward,
                            Names remade) {
  Tape discarded(runtime_, Mode::infer, &kernels());
  if (span == nullptr) discarded.span_listeners_ = span_listeners_;
  discarded.pass_ = pass_;
  discarded.metrics_ = metrics_;
  discarded.batch_rows_ = batch_rows_;
  const auto stretch = std::make_shared<Stretch>(*this, span, forward);
  discarded.made_ = made_;
  discarded.keeps_ = &stretch->once();
  using Shared = std::shared_ptr<Stretch>;
  Node node{.name = "recompute",
            .dgrad = [](Backward& backward) { backward.attributes<Shared>()->dgrad(backward); },
            .wgrad = [](Backward& backward) { backward.attributes<Shared>()->wgrad(); }};
  node.attributes = stretch;
  Bundle constants;
  for (const auto& [name, var] : in.all()) {
    constants.set(name, Var(var.value));
    node.inputs.push_back(var.id);
    Saved kept = saved(var.value, var.id);
    if (remade.size() == 0 && keeper_ && kept.kept() && var.value.defined())
      kept = Saved(var.value, keeper_(*this, var.value));
    stretch->add_input(name, std::move(kept), var.needs_gradient());
  }
  const Bundle values = forward(discarded, constants);
  // Without a gradient inside, nothing is recomputed.
  const auto has_gradient = [](const auto& named) { return named.second.needs_gradient(); };
  if (!discarded.trains_ && std::ranges::none_of(in.all(), has_gradient)) return values;
  node.trains = true;
  std::vector<Tensor> outputs;
  const auto is_remade = [&](const std::string& name) {
    return std::ranges::find(remade, name) != remade.end();
  };
  for (const auto& [name, var] : values.all()) {
    stretch->add_output(name, is_remade(name));
    outputs.push_back(var.value);
  }
  const std::vector<Var> vars = record(std::move(node), std::move(outputs));
  Bundle out;
  for (size_t i = 0; i < vars.size(); ++i) {
    const std::string& name = values.all()[i].first;
    if (is_remade(name)) remade_[vars[i].id] = {vars[i].value.storage_id(), stretch, i};
    out.set(name, vars[i]);
  }
  return out;
}

Bundle Tape::recompute(const Bundle& in, const SpanFunction& forward, Names remade) {
  return recording() ? record_stretch(nullptr, in, forward, remade) : forward(*this, in);
}

Tensor Tape::once(const std::function<Tensor()>& make) {
  if (pass_ == Pass::recompute) MG_ASSERT(made_ != nullptr && made_->next < made_->made.size());
  Tensor tensor = pass_ == Pass::recompute ? made_->made[made_->next++] : make();
  if (keeps_ != nullptr) keeps_->made.push_back(tensor);
  return tensor;
}

bool Tape::recomputes(std::string_view module) const {
  return std::ranges::find(modules_, module) != modules_.end();
}

Bundle Tape::module(std::string_view name, const Bundle& in, const SpanFunction& forward,
                    Names remade) {
  return recomputes(name) ? recompute(in, forward, remade) : forward(*this, in);
}

}  // namespace megatron
