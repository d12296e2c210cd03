// Reports what a rank is doing, for hang reports (comm/doing.h).
#pragma once

#include <string>
#include <vector>

#include "autograd/tape.h"
#include "comm/doing.h"

namespace megatron::training {

// Listens to the spans of a rank's passes. doing: borrowed; null: not needed.
class WorkReporter final : public SpanListener {
 public:
  explicit WorkReporter(comm::Doing* doing) : doing_(doing) {}

  // may_be_long: other ranks normally wait for it, as for the first step and a save.
  void step(int64_t number, bool may_be_long) {
    if (doing_ != nullptr) doing_->step(number, may_be_long);
  }
  // micro_batch: -1 if the phase does not belong to one.
  void phase(std::string_view name, int64_t micro_batch = -1, bool may_be_long = false);
  void long_phase(std::string_view name, int64_t micro_batch = -1) {
    phase(name, micro_batch, true);
  }
  void enter(const Span& span, Pass pass) override;
  void leave(const Span& span, Pass pass) override;

 private:
  comm::Doing* doing_;
  struct Open {
    std::string name;
    bool forward = false;
  };
  void report_layer(bool forward);

  std::vector<Open> spans_;
};

}  // namespace megatron::training
