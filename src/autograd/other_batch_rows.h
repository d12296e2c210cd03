// The rows of a batch that the dropout of adapters goes by, where products read another batch.
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
    if (outer_ && rows) tape.drop_in_adapters(*rows);
  }
  ~OtherBatchRows() {
    if (outer_) tape_.drop_in_adapters(*outer_);
  }
  OtherBatchRows(const OtherBatchRows&) = delete;
  OtherBatchRows& operator=(const OtherBatchRows&) = delete;

 private:
  Tape& tape_;
  std::optional<Tape::BatchRows> outer_;
};

}  // namespace megatron
