#pragma once

#include <functional>
#include <optional>
#include <string>

#include "parallel/placement.h"

namespace megatron::nn {

// Which matrices of a model have adapters (ops/low_rank.h).
struct AdapterRules {
  struct Adapter {
    int64_t rank = 0;
    double scale = 1;
  };
  // module: the name of a canonical tensor without ".weight".
  std::function<std::optional<Adapter>(const std::string& module)> adapter_of;
  // Names of the canonical tensors of an adapter's a [r,in] and b [out,r].
  std::function<std::string(const std::string& module, bool is_b)> stored_name;
  // Canonical tensors of the model that are trained besides the adapters.
  std::function<bool(const std::string& tensor)> trains;
  // Initial values of a: normal with a standard deviation of 1 / r, or uniform in [-1 / sqrt(in), 1
  // / sqrt(in)). Those of b are zero, or uniform in [-1 / sqrt(r), 1 / sqrt(r)).
  bool gaussian_a = false, random_b = false;
  // The same as adapter_of and stored_name for the experts of a layer that are one canonical
  // tensor, which has the parameter's name itself ("...experts.down_proj").
  std::function<std::optional<Adapter>(const std::string& parameter)> adapter_of_parameter;
  std::function<std::string(const std::string& parameter, bool is_b)> stored_parameter_name;
};

}  // namespace megatron::nn
