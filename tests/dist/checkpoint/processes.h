// Model that the processes of main.cpp save and layouts_test.cpp checks.
#pragma once

#include "divided_model.h"

namespace megatron::checkpoint {

inline WholeModel model_of_processes() { return {DType::bf16, true, 11}; }

inline std::vector<TestLayout> layouts_of_processes(int ranks) {
  std::mt19937_64 random(11);
  std::vector<TestLayout> layouts;
  for (uint64_t i = 0; i < 6; ++i) {
    layouts.push_back(TestLayout::any(ranks, random));
    layouts.back().seed = i;
  }
  return layouts;
}

}  // namespace megatron::checkpoint
