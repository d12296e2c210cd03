#include "training/work_reporter.h"

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

void WorkReporter::leave(const Span&, Pass) {
  if (doing_ == nullptr) return;
  if (!spans_.empty()) spans_.pop_back();
  doing_->layer(spans_.empty() ? std::string_view() : std::string_view(spans_.back()));
}

}  // namespace megatron::training
