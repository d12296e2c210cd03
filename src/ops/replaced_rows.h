// Rows of a table that are trained in place of the table's own, which are not.
#pragma once

#include <vector>

#include "autograd/tape.h"

namespace megatron::ops {

struct ReplacedRows {
  // Consecutive rows of `rows` that replace consecutive rows of the table.
  struct Run {
    int64_t row = 0;    // first replaced row, in this rank's part of the table
    int64_t first = 0;  // first row in `rows`
    int64_t count = 0;
  };
  Weight rows;  // [n,H]; none: nothing is replaced
  std::vector<Run> runs;

  explicit operator bool() const { return static_cast<bool>(rows); }
  Tensor values(const Run& run) const { return rows.value().slice(0, run.first, run.count); }
};

// Calls add(gradient, run) for each run. add() adds to the run's rows of the f32 (f64) gradient
// sum, which is cleared first if it has no value yet.
template <class F>
void add_row_gradients(const ReplacedRows& replaced, Tape& tape, F&& add) {
  const GradSlot slot = tape.grad_slot(replaced.rows);
  if (!slot.out.defined()) return;
  if (slot.beta == 0) tape.kernels().fill({.out = slot.out, .value = 0}, tape.stream());
  for (const ReplacedRows::Run& run : replaced.runs)
    add(slot.out.slice(0, run.first, run.count), run);
}

}  // namespace megatron::ops
