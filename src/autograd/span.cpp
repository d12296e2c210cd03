// Spans: notification of listeners.
#include <memory>

#include "autograd/tape.h"
#include "base/error.h"

namespace megatron {
namespace {

// A node without inputs that calls the listeners when backward passes it.
struct Mark {
  std::shared_ptr<const Span> span;
  std::span<SpanListener* const> listeners;
  bool end = false;  // the span's end in forward order, where backward enters it
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

}  // namespace

std::string_view name(Pass pass) {
  switch (pass) {
    case Pass::forward: return "forward";
    case Pass::backward: return "backward";
    case Pass::recompute: return "recompute";
    case Pass::evaluate: return "evaluate";
  }
  MG_ASSERT(false);
}

void Tape::tell(const Span& span, Pass pass, bool enters) {
  for (SpanListener* listener : span_listeners_) {
    if (enters) {
      listener->enter(span, pass);
    } else {
      listener->leave(span, pass);
    }
  }
}

void Tape::mark(const Span& span, bool end) {
  if (!recording() || span_listeners_.empty()) return;
  Node node{.name = "span", .dgrad = pass_mark, .root = true};
  node.attributes = Mark{std::make_shared<const Span>(span), span_listeners_, end};
  record(std::move(node), {});
}

// True if nothing was recorded in the span.
bool Tape::ends_with_begin_of(const Span& span) const {
  if (nodes_.empty()) return false;
  const auto* mark = std::any_cast<Mark>(&nodes_.back().attributes);
  return mark != nullptr && !mark->end && mark->span->name == span.name;
}

void Tape::begin_span(const Span& span) {
  tell(span, pass_, true);
  mark(span, false);
}

void Tape::end_span(const Span& span) {
  if (ends_with_begin_of(span)) nodes_.pop_back();
  else mark(span, true);
  tell(span, pass_, false);
}

Bundle Tape::span(const Span& span, const Bundle& in, const SpanFunction& forward) {
  begin_span(span);
  Bundle out =
      span.recompute && recording() ? record_stretch(&span, in, forward, {}) : forward(*this, in);
  end_span(span);
  return out;
}

}  // namespace megatron
