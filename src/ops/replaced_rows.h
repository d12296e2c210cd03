// Rows of a table that are trained in place of the table's own, which are not.
#pragma once

#include <vector>

#include "autograd/tape.h"

namespace megatron::ops {

struct ReplacedRows {
  // Consecutive rows of `rows` that stand for consecutive rows of the table.
  struct Run {
    int64_t row = 0;    // of the table that this rank holds
    int64_t first = 0;  // of `rows`
    int64_t count = 0;
  };
  Weight rows;  // [n,H]; none: nothing is replaced
  std::vector<Run> runs;

  explicit operator bool() const { return static_cast<bool>(rows); }
  Tensor values(const Run& run) const { return rows.value().slice(0, run.first, run.count); }
};

// Calls add(gradient, run), which adds to the rows of a run in the f32 (f64) sum of their
// gradients, after it has cleared the sum if it has no value yet.
template <class F>
void add_row_gradients(const ReplacedRows& replaced, Tape& tape, F&& add) {
  const GradSlot slot = tape.grad_slot(replaced.rows);
  if (!slot.out.defined()) return;
  if (slot.beta == 0) tape.kernels().fill({.out = slot.out, .value = 0}, tape.stream());
  for (const ReplacedRows::Run& run : replaced.runs)
    add(slot.out.slice(0, run.first, run.count), run);
}

}  // namespace megatron::ops
