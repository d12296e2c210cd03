// The rows of the batch whose tokens key random numbers, where products read another batch.
#pragma once

#include <optional>

#include "autograd/tape.h"

namespace megatron {

// While it exists, adapters drop elements of other rows than those of the tape's batch: an
// encoder's texts have rows of their own. It has no effect in a pass without batch_rows().
class OtherBatchRows {
 public:
  OtherBatchRows(Tape& tape, const std::optional<Tape::BatchRows>& rows)
      : tape_(tape), outer_(tape.batch_rows()) {
    if (outer_ && rows) tape.set_batch_rows(*rows);
  }
  ~OtherBatchRows() {
    if (outer_) tape_.set_batch_rows(*outer_);
  }
  OtherBatchRows(const OtherBatchRows&) = delete;
  OtherBatchRows& operator=(const OtherBatchRows&) = delete;

 private:
  Tape& tape_;
  std::optional<Tape::BatchRows> outer_;
};

}  // namespace megatron
