// What the config.json of several families have in common: values by their keys, activations and types by
// their names.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "kernels/activation.h"
#include "parallel/placement.h"

namespace megatron::models {

// The value of a key; null where it is absent or null.
const Json* present(const Json& config, std::string_view key);
// A positive number. Absent: `otherwise`; 0 then stands for one that depends on other keys. These
// throw Error naming the key and the value.
int64_t integer(const Json& config, std::string_view key, std::optional<int64_t> otherwise = {});
double number(const Json& config, std::string_view key, double otherwise);
bool boolean(const Json& config, std::string_view key, bool otherwise);
std::string text(const Json& config, std::string_view key, std::string otherwise);

kernels::Activation activation_named(const std::string& name);
std::string activation_name(kernels::Activation activation);
std::string stored_name(DType type);  // "bfloat16"

// "layers.3.attention.qkv.weight" is {"3", "attention.qkv.weight"}; outside of layers the first is
// empty.
struct ParameterName {
  std::string layer, rest;
};
ParameterName split_name(const std::string& parameter);
// `theirs` + what follows `ours` in `rest`, which begins with it.
std::string replaced_prefix(const std::string& rest, std::string_view ours,
                            std::string_view theirs);

// One tensor on disk, and several stacked along dim 0.
std::vector<parallel::CanonicalTensor> whole(const std::string& name, const Shape& shape,
                                             bool transposed);
std::vector<parallel::CanonicalTensor> stacked(
    const Shape& shape, const std::vector<std::pair<std::string, int64_t>>& names_and_rows);

}  // namespace megatron::models
