#include "training/work_reporter.h"

#include <algorithm>

namespace megatron::training {

void WorkReporter::phase(std::string_view name, int64_t micro_batch, bool may_be_long) {
  if (doing_ == nullptr) return;
  doing_->phase(name, may_be_long);
  if (micro_batch >= 0) doing_->micro_batch(micro_batch);
}

void WorkReporter::enter(const Span& span, Pass) {
  if (doing_ == nullptr) return;
  spans_.push_back(span.name);
  doing_->layer(span.name);
}

// Spans of two micro-batches may be open at once.
void WorkReporter::leave(const Span& span, Pass) {
  if (doing_ == nullptr) return;
  if (const auto last = std::find(spans_.rbegin(), spans_.rend(), span.name); last != spans_.rend())
    spans_.erase(std::next(last).base());
  doing_->layer(spans_.empty() ? std::string_view() : std::string_view(spans_.back()));
}

}  // namespace megatron::training
