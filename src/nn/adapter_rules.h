#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "parallel/placement.h"

namespace megatron::nn {

// What a module is: a matrix, the table of tokens, the output layer.
enum class AdaptedKind { linear, embedding, output };
// Tensors of an adapter: a [r,in], b [out,r], the bias of b [out], magnitudes [out]; of the table
// of tokens, a [r,V] and b [H,r], and rows in place of the table's [n,H].
enum class AdapterTensor { a, b, b_bias, magnitude, embedding_a, embedding_b, token_rows };

// Which matrices of a model have adapters (ops/low_rank.h).
struct AdapterRules {
  struct Adapter {
    int64_t rank = 0;
    double scale = 1;
    bool b_bias = false;
    bool magnitude = false;  // DoRA
    double dropout = 0;      // of the input, in training
  };
  // module: the name of a canonical tensor without ".weight".
  std::function<std::optional<Adapter>(const std::string& module, AdaptedKind kind)> adapter_of;
  // Rows of a table of tokens, or of an output layer, in whose place others are trained.
  std::function<std::vector<int64_t>(const std::string& module, AdaptedKind kind)> token_rows_of;
  // Name of a canonical tensor of an adapter.
  std::function<std::string(const std::string& module, AdapterTensor tensor)> stored_name;
  // Canonical tensors of the model that are trained besides the adapters.
  std::function<bool(const std::string& tensor)> trains;
  // Initial values of a: normal with a standard deviation of 1 / r, or uniform in [-1 / sqrt(in), 1
  // / sqrt(in)). Those of b are zero, or uniform in [-1 / sqrt(r), 1 / sqrt(r)).
  bool gaussian_a = false, random_b = false;
  double b_rate = 1;  // learning rate of b by that of a (LoRA+; Hayou et al. 2024)
  // The same as adapter_of and stored_name for the experts of a layer that are one canonical
  // tensor, which has the parameter's name itself ("...experts.down_proj").
  std::function<std::optional<Adapter>(const std::string& parameter)> adapter_of_parameter;
  std::function<std::string(const std::string& parameter, bool is_b)> stored_parameter_name;
};

}  // namespace megatron::nn
