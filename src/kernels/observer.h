// Observer of every kernel call of a stream: stream.watch(&observer).
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "kernels/cost.h"
#include "kernels/table.h"

namespace megatron::kernels {

struct Operand {
  std::string_view name;
  Access access = Access::read;
  Tensor tensor;
};

// A kernel call in progress.
struct Call {
  std::string_view kernel;  // the table's entry
  Cost cost;
  int form = 0;                       // form_of() the arguments (kernels/cost.h)
  std::span<const Operand> operands;  // defined tensors, in the order of visit()
  // Captures the arguments that are not tensors, so that the device's kernel can be called again on
  // replacements for the operands, in their order.
  using Again = std::function<void(std::span<const Tensor>, Stream&)>;
  std::function<Again()> again;  // valid during the call
};

class Observer : public StreamWatcher {
 public:
  virtual void before(const Call&) {}
  virtual void after(const Call&) = 0;  // on a host stream, the kernel has finished
};

}  // namespace megatron::kernels
