// The rows whose tokens key random numbers, where products read others than the batch's.
#pragma once

#include <memory>
#include <utility>

#include "autograd/tape.h"

namespace megatron {

// While it exists, adapters drop elements of other rows than those of the tape's batch, and
// gradients are rounded by their random numbers: an encoder's texts and experts have rows of their
// own. It has no effect in a pass without batch_rows().
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
