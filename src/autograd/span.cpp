// Spans: notices to listeners, and recompute.
#include <memory>

#include "autograd/tape.h"
#include "base/error.h"

namespace megatron {
namespace {

// A mark has no inputs; it runs when backward passes it and tells the listeners.
struct Mark {
  std::shared_ptr<const Span> span;
  std::span<SpanListener* const> listeners;
  bool end = false;  // of the span in forward order: backward enters here
};

void pass_mark(Backward& backward) {
  const Mark& mark = backward.attributes<Mark>();
  for (SpanListener* listener : mark.listeners) {
    if (mark.end) {
      listener->enter(*mark.span, Pass::backward);
    } else {
      listener->leave(*mark.span, Pass::backward);
    }
  }
}

struct Recompute {
  std::shared_ptr<const Span> span;
  Tape::SpanFunction forward;
  std::vector<std::string> inputs, outputs;  // names in the bundles
  std::span<SpanListener* const> listeners;
  GradientListener* gradient_listener = nullptr;
  std::shared_ptr<Tape> tape;  // between dgrad and a deferred wgrad
};

void recompute_dgrad(Backward& backward) {
  auto& r = backward.attributes<Recompute>();
  for (SpanListener* listener : r.listeners) listener->enter(*r.span, Pass::recompute);
  r.tape =
      std::make_shared<Tape>(backward.tape().runtime(), Tape::Mode::record, &backward.kernels());
  r.tape->listen(r.gradient_listener);
  Bundle in;
  for (size_t i = 0; i < r.inputs.size(); ++i) {
    in.set(r.inputs[i],
           backward.needs(i) ? r.tape->leaf(backward.saved(i)) : Var(backward.saved(i)));
  }
  const Bundle out = r.forward(*r.tape, in);
  for (SpanListener* listener : r.listeners) listener->leave(*r.span, Pass::recompute);
  for (size_t i = 0; i < r.outputs.size(); ++i) {
    if (backward.gradient(i).defined())
      r.tape->set_gradient(out[r.outputs[i]], backward.gradient(i));
  }
  r.tape->backward(Part::input);
  for (size_t i = 0; i < r.inputs.size(); ++i) {
    if (backward.needs(i) && r.tape->gradient(in[r.inputs[i]]).defined()) {
      backward.set(i, r.tape->gradient(in[r.inputs[i]]));
    }
  }
}

void recompute_wgrad(Backward& backward) {
  auto& r = backward.attributes<Recompute>();
  r.tape->backward(Part::weight);
  r.tape.reset();
}

}  // namespace

std::string_view name(Pass pass) {
  switch (pass) {
    case Pass::forward: return "forward";
    case Pass::backward: return "backward";
    case Pass::recompute: return "recompute";
  }
  MG_ASSERT(false);
}

void Tape::mark(const Span& span, bool end) {
  if (!recording() || span_listeners_.empty()) return;
  Node node{.name = "span", .dgrad = pass_mark, .root = true};
  node.attributes = Mark{std::make_shared<const Span>(span), span_listeners_, end};
  record(std::move(node), {});
}

Bundle Tape::span(const Span& span, const Bundle& in, const SpanFunction& forward) {
  for (SpanListener* listener : span_listeners_) listener->enter(span, Pass::forward);
  mark(span, false);
  Bundle out =
      span.recompute && recording() ? recomputed_span(span, in, forward) : forward(*this, in);
  mark(span, true);
  for (SpanListener* listener : span_listeners_) listener->leave(span, Pass::forward);
  return out;
}

Bundle Tape::recomputed_span(const Span& span, const Bundle& in, const SpanFunction& forward) {
  Tape discarded(runtime_, Mode::infer, &kernels());
  Bundle constants;
  Recompute attributes{
      std::make_shared<const Span>(span), forward, {}, {}, span_listeners_, gradient_listener_, {}};
  Node node{.name = "recompute", .dgrad = recompute_dgrad, .wgrad = recompute_wgrad};
  for (const auto& [name, var] : in.all()) {
    constants.set(name, Var(var.value));
    attributes.inputs.push_back(name);
    node.inputs.push_back(var.id);
    node.saved.push_back(var.value);
  }
  const Bundle values = forward(discarded, constants);
  std::vector<Tensor> outputs;
  for (const auto& [name, var] : values.all()) {
    attributes.outputs.push_back(name);
    outputs.push_back(var.value);
  }
  const std::vector<std::string> names = attributes.outputs;
  node.attributes = std::move(attributes);
  const std::vector<Var> vars = record(std::move(node), std::move(outputs));
  Bundle out;
  for (size_t i = 0; i < names.size(); ++i) out.set(names[i], vars[i]);
  return out;
}

}  // namespace megatron
