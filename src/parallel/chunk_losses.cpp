#include "parallel/chunk_losses.h"

#include "parallel/collectives.h"

namespace megatron::parallel {
namespace {

void divided_losses(Tape& tape, const LogitChunk& chunk, int64_t first, const TensorParallel& tp,
                    std::string_view call) {
  Stream& stream = tape.stream();
  const int64_t count = chunk.labels.elements();
  const DType type = chunk.loss.dtype();
  const Tensor stats = communication_buffer(tape, {count, 3}, type, "loss.stats"),
               all = communication_buffer(tape, {tp.size(), count, 3}, type, "loss.stats");
  const Tensor exponentials = chunk.dlogits.defined() ? chunk.exponentials : Tensor();
  tape.kernels().vocabulary_stats({.logits = chunk.logits,
                                   .labels = chunk.labels,
                                   .weights = chunk.weights,
                                   .first = first,
                                   .exponentials = exponentials,
                                   .stats = stats},
                                  stream);
  tp.group->all_gather(stats, all, stream, call).wait(stream);
  tape.kernels().vocabulary_cross_entropy({.stats = all,
                                           .exponentials = exponentials,
                                           .labels = chunk.labels,
                                           .weights = chunk.weights,
                                           .first = first,
                                           .rank = tp.rank(),
                                           .loss = chunk.loss,
                                           .dlogits = chunk.dlogits,
                                           .hits = chunk.hits},
                                          stream);
}

}  // namespace

void chunk_losses(Tape& tape, const LogitChunk& chunk, int64_t first, double soft_cap,
                  const TensorParallel& tp, std::string_view call) {
  const kernels::Table& table = tape.kernels();
  Stream& stream = tape.stream();
  if (soft_cap > 0)
    table.soft_cap({.cap = soft_cap, .x = chunk.logits, .out = chunk.logits}, stream);
  if (alone(tp.group)) {
    table.cross_entropy({.logits = chunk.logits,
                         .labels = chunk.labels,
                         .weights = chunk.weights,
                         .loss = chunk.loss,
                         .dlogits = chunk.dlogits,
                         .hits = chunk.hits},
                        stream);
  } else {
    divided_losses(tape, chunk, first, tp, call);
  }
  if (soft_cap == 0 || !chunk.dlogits.defined()) return;
  table.soft_cap_backward(
      {.cap = soft_cap, .out = chunk.logits, .dout = chunk.dlogits, .dx = chunk.dlogits}, stream);
}

}  // namespace megatron::parallel
