// Named models (--preset), each defined by flags.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/model_flags.h"

namespace megatron::settings {

// GPT-2 of 124 and 1558 million parameters (Radford et al. 2019); Llama 3.2 of 1 and 3 and Llama 3
// of 8 billion (Grattafiori et al. 2024); "llama-160m": one of the depth and width of GPT-2 124M
// with 4 query groups and own output weights, 153 million parameters; "mamba-130m": Mamba-2's
// smallest (Dao & Gu 2024); "hybrid-300m": state spaces, MLPs and attention.
std::vector<std::string> preset_names();
inline constexpr std::string_view kDefaultPreset = "gpt2-124m";

// Returns flags and values as words of a command line, "--num-layers", "12", ...: shape (without
// dropout), sequence length, micro-batch and recomputation with which one GPU of 139 GiB holds the
// model in bf16 and its optimizer; for the two small models, values that suit a CPU. name: one of
// preset_names().
std::vector<std::string> preset_flags(std::string_view name);

// Returns only the shape, with as many positions as the sequence length.
models::ModelFlags preset_shape(std::string_view name);

}  // namespace megatron::settings
