// Memory for operands of calls that are made only to measure their time.
#pragma once

#include <map>
#include <vector>

#include "device/stream.h"
#include "plan/expert_rows.h"
#include "plan/recorder.h"

namespace megatron::plan {

// Operands are placed consecutively in pools of a few hundred megabytes, which are used cyclically,
// so that the operands of a call are spread out and each is as cold in the caches as the pool is
// large. Read-only operands hold small random numbers; indices are in range, counts and weights
// positive.
class ReplayMemory {
 public:
  // cold: minimum total size of the pools in bytes. fill: for products of experts.
  ReplayMemory(Runtime& runtime, int64_t cold, const ExpertFill& fill = {})
      : runtime_(runtime), cold_(cold), fill_(fill) {}

  // Operands of a call, in order. Written operands contain results of earlier calls.
  std::vector<Tensor> operands(const WorkItem& item);

 private:
  struct Pool {
    Tensor memory;
    int64_t next = 0;  // bytes
  };
  // Reserves room for consecutive operands of `bytes` in total.
  void reserve(DType type, bool written, int64_t bytes);
  Tensor take(DType type, bool written, int64_t bytes);
  static void fill(const Tensor& pool);
  Tensor small(const OperandForm& form, const WorkItem& item);

  Runtime& runtime_;
  int64_t cold_;
  ExpertFill fill_;
  std::map<std::pair<DType, bool>, Pool> pools_;
};

}  // namespace megatron::plan
