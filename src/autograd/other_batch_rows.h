// Rows that key random numbers for products whose rows are not those of the batch.
#pragma once

#include <memory>
#include <utility>

#include "autograd/tape.h"

namespace megatron {

// While it exists, the dropout of adapters and stochastic rounding of gradients use these rows
// instead of those of the tape's batch: an encoder's texts and experts have rows of their own. It
// has no effect in a pass without batch_rows().
class OtherBatchRows {
 public:
  OtherBatchRows(Tape& tape, std::shared_ptr<const BatchRows> rows)
      : tape_(tape), outer_(tape.batch_rows()) {
    if (outer_ && rows) tape.set_batch_rows(std::move(rows));
  }
  OtherBatchRows(Tape& tape, BatchRows rows)
      : OtherBatchRows(tape, std::make_shared<const BatchRows>(std::move(rows))) {}
  ~OtherBatchRows() { tape_.set_batch_rows(std::move(outer_)); }
  OtherBatchRows(const OtherBatchRows&) = delete;
  OtherBatchRows& operator=(const OtherBatchRows&) = delete;

 private:
  Tape& tape_;
  std::shared_ptr<const BatchRows> outer_;
};

}  // namespace megatron
