#include "models/gpt/hugging_face.h"

#include "base/error.h"

namespace megatron::models {
namespace {

using parallel::CanonicalTensor;

template <class Get>
auto read(std::string_view key, Get get) {
  try {
    return get();
  } catch (const Error& error) {
    fail("config.json, {}: {}", key, error.what());
  }
}

}  // namespace

const Json* present(const Json& config, std::string_view key) {
  const Json* value = config.find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

int64_t integer(const Json& config, std::string_view key, std::optional<int64_t> otherwise) {
  if (const Json* value = present(config, key)) {
    const int64_t number = read(key, [value] { return value->as_integer(); });
    MG_CHECK(number > 0, "config.json has {} = {}; a positive number is wanted", key, number);
    return number;
  }
  MG_CHECK(otherwise.has_value(), "config.json has no '{}'", key);
  return *otherwise;
}

double number(const Json& config, std::string_view key, double otherwise) {
  const Json* value = present(config, key);
  return value == nullptr ? otherwise : read(key, [value] { return value->as_number(); });
}

bool boolean(const Json& config, std::string_view key, bool otherwise) {
  const Json* value = present(config, key);
  return value == nullptr ? otherwise : read(key, [value] { return value->as_bool(); });
}

std::string text(const Json& config, std::string_view key, std::string otherwise) {
  const Json* value = present(config, key);
  return value == nullptr ? otherwise : read(key, [value] { return value->as_string(); });
}

kernels::Activation activation_named(const std::string& name) {
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") return kernels::Activation::gelu_tanh;
  if (name == "gelu") return kernels::Activation::gelu_erf;
  if (name == "silu" || name == "swish") return kernels::Activation::silu;
  if (name == "relu") return kernels::Activation::relu;
  fail(
      "config.json asks for the activation '{}'; supported: gelu_new, gelu_pytorch_tanh, gelu, "
      "silu, swish, relu",
      name);
}

std::string activation_name(kernels::Activation activation) {
  switch (activation) {
    case kernels::Activation::gelu_tanh: return "gelu_new";
    case kernels::Activation::gelu_erf: return "gelu";
    case kernels::Activation::silu: return "silu";
    case kernels::Activation::relu: return "relu";
  }
  MG_ASSERT(false);
}

std::string stored_name(DType type) {
  switch (type) {
    case DType::bf16: return "bfloat16";
    case DType::f16: return "float16";
    case DType::f64: return "float64";
    default: return "float32";
  }
}

ParameterName split_name(const std::string& name) {
  if (!name.starts_with("layers.")) return {"", name};
  const size_t dot = name.find('.', 7);
  return {name.substr(7, dot - 7), name.substr(dot + 1)};
}

std::string replaced_prefix(const std::string& rest, std::string_view ours,
                            std::string_view theirs) {
  MG_ASSERT(rest.starts_with(ours));
  return std::string(theirs) + rest.substr(ours.size());
}

std::vector<CanonicalTensor> whole(const std::string& name, const Shape& shape, bool transposed) {
  return {CanonicalTensor{.name = name, .global = shape, .transposed = transposed}};
}

// Several tensors stacked along dim 0.
std::vector<CanonicalTensor> stacked(
    const Shape& shape, const std::vector<std::pair<std::string, int64_t>>& names_and_rows) {
  std::vector<CanonicalTensor> parts;
  int64_t begin = 0;
  for (const auto& [name, rows] : names_and_rows) {
    Shape global = shape;
    global.set(0, rows);
    parts.push_back({.name = name, .global = global, .held = {{0, {{0, begin, rows}}}}});
    begin += rows;
  }
  MG_ASSERT(begin == shape[0]);
  return parts;
}

}  // namespace megatron::models
