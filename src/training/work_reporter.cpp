#include "training/work_reporter.h"

#include <algorithm>

namespace megatron::training {

// If passes of two micro-batches alternate, the one that continues is in the layer in which it
// stopped.
void WorkReporter::phase(std::string_view name, int64_t micro_batch, bool may_be_long) {
  if (doing_ == nullptr) return;
  doing_->phase(name, may_be_long);
  if (micro_batch >= 0) doing_->micro_batch(micro_batch);
  if (!spans_.empty()) report_layer(name == "forward");
}

void WorkReporter::report_layer(bool forward) {
  const auto last = std::find_if(spans_.rbegin(), spans_.rend(),
                                 [&](const Open& open) { return open.forward == forward; });
  doing_->layer(last == spans_.rend() ? std::string_view() : std::string_view(last->name));
}

void WorkReporter::enter(const Span& span, Pass pass) {
  if (doing_ == nullptr) return;
  spans_.push_back({span.name, pass == Pass::forward});
  doing_->layer(span.name);
}

// Spans of two micro-batches may be open at once.
void WorkReporter::leave(const Span& span, Pass pass) {
  if (doing_ == nullptr) return;
  const bool forward = pass == Pass::forward;
  const auto last = std::find_if(spans_.rbegin(), spans_.rend(), [&](const Open& open) {
    return open.name == span.name && open.forward == forward;
  });
  if (last != spans_.rend()) spans_.erase(std::next(last).base());
  report_layer(forward);
}

}  // namespace megatron::training
