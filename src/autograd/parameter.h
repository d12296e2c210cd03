// Leaves of differentiation.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "autograd/low_precision.h"
#include "tensor/tensor.h"

namespace megatron {

// A weight and its gradient accumulators. A weight that is used in two places (tied embeddings) has
// two uses with an accumulator each, which are summed once at the end, so that the sum does not
// depend on the order of the uses. Ops whose order is the same in every layout may share one.
struct Parameter {
  struct Use {
    Tensor grad;            // shape of value, f32 (f64 for f64): sum over the micro-batches so far
    bool started = false;   // grad has a value: the next gradient adds to it
    int micro_batches = 0;  // micro-batches whose gradient it contains
    int ops = 1;            // ops of a micro-batch that use the parameter here
    int done = 0;           // those of the current micro-batch whose gradient it contains
  };

  std::string name;  // canonical name: "layers.0.attention.qkv.weight"
  Tensor value;      // in the type of the model
  // False for a module state and a frozen parameter, which have no gradient: the tape records no op
  // for them alone, DataParallel makes no buffer, the optimizer no state. Set before the others see
  // it.
  bool trainable = true;
  std::vector<Use> uses = std::vector<Use>(1);
  std::optional<LowPrecision> low_precision;  // of linear layers' products with it

  int micro_batches_final() const;  // minimum over the uses
};

// One use of a parameter. detached: without a gradient here, although the parameter is trained.
struct Weight {
  Parameter* parameter = nullptr;
  int use = 0;
  bool detached = false;
  Weight() = default;
  Weight(Parameter& p, int use_index = 0) : parameter(&p), use(use_index) {}
  explicit operator bool() const { return parameter != nullptr; }
  const Tensor& value() const { return parameter->value; }
  bool trainable() const { return parameter->trainable && !detached; }
  // What an op saves for this weight's gradient alone: nothing if there is none.
  Tensor for_gradient(const Tensor& t) const { return trainable() ? t : Tensor(); }
};

// Called when all uses of a parameter have the gradient of a micro-batch (0, 1, ... within a step),
// and, to allocate memory, before a gradient is added to a use whose accumulator has none.
class GradientListener {
 public:
  virtual ~GradientListener() = default;
  virtual void gradient_begins(Parameter&) {}
  virtual void gradient_final(Parameter& parameter, int micro_batch) = 0;
};

}  // namespace megatron
