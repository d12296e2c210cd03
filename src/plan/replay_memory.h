// Memory for operands of calls that are made for their time only.
#pragma once

#include <map>
#include <vector>

#include "device/stream.h"
#include "plan/expert_rows.h"
#include "plan/recorder.h"

namespace megatron::plan {

// Operands lie one after another in pools of a few hundred megabytes, which are gone through in
// circles, so that those of one call lie apart and each is as cold as the pool is large. What is
// only read holds small random numbers; indices are in range, counts and weights positive.
class ReplayMemory {
 public:
  // cold: bytes that all pools have together, at least. fill: of products of experts.
  ReplayMemory(Runtime& runtime, int64_t cold, const ExpertFill& fill = {})
      : runtime_(runtime), cold_(cold), fill_(fill) {}

  // The operands of a call, in their order. Contents of written ones are what earlier calls left.
  std::vector<Tensor> operands(const WorkItem& item);

 private:
  struct Pool {
    Tensor memory;
    int64_t next = 0;  // bytes
  };
  void reserve(DType type, bool written, int64_t bytes);  // so many lie ahead, one after another
  Tensor take(DType type, bool written, int64_t bytes);
  static void fill(const Tensor& pool);
  Tensor small(const OperandForm& form, const WorkItem& item);

  Runtime& runtime_;
  int64_t cold_;
  ExpertFill fill_;
  std::map<std::pair<DType, bool>, Pool> pools_;
};

}  // namespace megatron::plan
