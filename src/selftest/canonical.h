// Parameters, gradients and optimizer states under their names on disk, so that layouts and files
// can be compared.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "parallel/placement.h"

namespace megatron::selftest {

using TensorMap =
    std::map<std::string, std::vector<double>>;  // canonical name -> elements in the layout on disk

// The canonical tensors of what tensor_of gives for each parameter, a tensor of the parameter's
// shape on the host; where it is undefined the parameter is left out.
TensorMap canonical(std::span<parallel::Placed* const> parameters,
                    const std::function<Tensor(const parallel::Placed&)>& tensor_of);
TensorMap canonical_values(std::span<parallel::Placed* const> parameters);
// Gradients of use 0, divided.
TensorMap canonical_gradients(std::span<parallel::Placed* const> parameters, double divisor);

}  // namespace megatron::selftest
