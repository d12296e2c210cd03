#include "models/stage.h"

namespace megatron::models {

Bundle forward(const Stage& stage, Tape& tape, const nn::Batch& batch, Phase phase,
               bool recompute) {
  Bundle bundle;
  bool first = true;
  for (const Segment& segment : stage.segments()) {
    Span span = segment.span;
    span.recompute = recompute && !first;  // the embedding's input is the batch: nothing to save
    bundle = tape.span(span, bundle, [&segment, &batch, phase](Tape& t, const Bundle& in) {
      return segment.forward(t, in, batch, phase);
    });
    first = false;
  }
  return bundle;
}

Tensor head_loss(const Stage& stage, Tape& tape, const Bundle& in, const nn::Batch& batch) {
  Tensor loss;
  tape.span(stage.head(), in, [&](Tape& t, const Bundle& b) {
    loss = stage.loss(t, b, batch);
    return Bundle();
  });
  return loss;
}

}  // namespace megatron::models
