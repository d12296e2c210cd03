#include "selftest/canonical.h"

#include "checkpoint/part_copy.h"

namespace megatron::selftest {

TensorMap canonical(std::span<parallel::Placed* const> parameters,
                    const std::function<Tensor(const parallel::Placed&)>& tensor_of) {
  TensorMap tensors;
  for (const parallel::Placed* placed : parameters) {
    const Tensor tensor = tensor_of(*placed);
    if (!tensor.defined()) continue;
    for (const parallel::Part& part : placed->placement.parts) {
      std::vector<double>& values = tensors[part.name];
      values.resize(static_cast<size_t>(part.global.elements()));
      checkpoint::write_part(part, tensor, std::as_writable_bytes(std::span(values)), DType::f64);
    }
  }
  return tensors;
}

TensorMap canonical_values(std::span<parallel::Placed* const> parameters) {
  return canonical(parameters,
                   [](const parallel::Placed& placed) { return placed.parameter.value; });
}

TensorMap canonical_gradients(std::span<parallel::Placed* const> parameters, double divisor) {
  TensorMap tensors = canonical(
      parameters, [](const parallel::Placed& placed) { return placed.parameter.uses[0].grad; });
  for (auto& [name, values] : tensors) {
    for (double& v : values) v /= divisor;
  }
  return tensors;
}

}  // namespace megatron::selftest
