#include "device/cuda/architectures.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>

namespace megatron::cuda {

bool runs_on(std::string_view built, int major, int minor) {
  if (built.empty()) return true;
  while (!built.empty()) {
    const std::string one(built.substr(0, built.find(',')));
    built.remove_prefix(std::min(built.size(), one.size() + 1));
    const int number = std::atoi(one.c_str()), from = number % 10;
    const bool alone = one.back() == 'a';
    if (number / 10 == major && (alone ? from == minor : from <= minor)) return true;
  }
  return false;
}

std::string no_code_for(std::string_view built, std::string_view gpu, int major, int minor) {
  if (runs_on(built, major, minor)) return "";
  return fmt::format(
      "this build has kernels for compute capability {0}, and {1} has {2}.{3}; build with "
      "-DMEGATRON_CUDA_ARCHITECTURES={2}{3}, or hide that GPU by CUDA_VISIBLE_DEVICES",
      built, gpu, major, minor);
}

}  // namespace megatron::cuda
