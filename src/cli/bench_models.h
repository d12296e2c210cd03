// The models that speeds are published of, by name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/gpt/config.h"
#include "training/settings.h"

namespace megatron::cli {

// GPT-2 of 124 and 1558 million parameters (Radford et al. 2019); Llama 3.2 of 1 and 3 and Llama 3
// of 8 billion (Grattafiori et al. 2024); "llama-160m": one of the depth and width of GPT-2 124M
// with 4 query groups and own output weights, 153 million parameters.
std::vector<std::string> bench_models();
inline constexpr std::string_view kDefaultBenchModel = "gpt2-124m";

// Shape (without dropout), sequence length, micro-batch and recomputation with which one GPU of 139
// GiB holds the model in bf16 and its optimizer; of the two small ones those that suit a CPU.
void set_bench_model(training::TrainSettings& settings, std::string_view name);
// The shape alone, with as many positions.
models::GptFlags shape_of(std::string_view name);

}  // namespace megatron::cli
