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
  std::string_view kernel;  // entry of the table
  Cost cost;
  int form = 0;                       // form_of() the arguments (kernels/cost.h)
  std::span<const Operand> operands;  // defined ones, in the order of visit()
  // Captures the arguments that are not tensors, so that the kernel of the stream's device can be
  // called again on tensors like the operands, in their order.
  using Again = std::function<void(std::span<const Tensor>, Stream&)>;
  std::function<Again()> again;  // valid during the call
};

class Observer : public StreamWatcher {
 public:
  virtual void before(const Call&) {}
  virtual void after(const Call&) = 0;  // on a host stream the kernel has run
};

// A device's table in which every entry calls the stream's watcher, an Observer.
const Table& observed_table(DeviceKind kind);

}  // namespace megatron::kernels
