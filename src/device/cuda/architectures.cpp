#include "device/cuda/architectures.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace megatron::cuda {
namespace {

// Lowest capability that cmake/cuda_architectures.cmake accepts.
constexpr int kMin = 80;

struct Architecture {
  int number = 0;      // 90: compute capability 9.0
  bool alone = false;  // "90a"
  bool later = false;  // "90+ptx"
};

std::vector<Architecture> parse(std::string_view built) {
  std::vector<Architecture> all;
  while (!built.empty()) {
    const std::string one(built.substr(0, built.find(',')));
    built.remove_prefix(std::min(built.size(), one.size() + 1));
    all.push_back({.number = std::atoi(one.c_str()),
                   .alone = one.back() == 'a',
                   .later = one.ends_with("+ptx")});
  }
  return all;
}

}  // namespace

bool runs_on(std::string_view built, int major, int minor) {
  if (built.empty()) return true;
  const int gpu = 10 * major + minor;
  return std::ranges::any_of(parse(built), [&](const Architecture& a) {
    if (a.alone) return a.number == gpu;
    return a.number <= gpu && (a.later || a.number / 10 == major);
  });
}

std::string no_code_for(std::string_view built, std::string_view gpu, int major, int minor) {
  if (runs_on(built, major, minor)) return "";
  const int number = 10 * major + minor;
  if (number < kMin)
    return fmt::format(
        "{} has compute capability {}.{}, which is not supported: the kernels need 8.0 or later "
        "(bf16 tensor cores); use --device cpu, or hide that GPU with CUDA_VISIBLE_DEVICES",
        gpu, major, minor);
  int highest = 0;
  for (const Architecture& a : parse(built)) highest = std::max(highest, a.number);
  const std::string newer =
      number > highest ? fmt::format(" ({}+ptx where nvcc does not know it)", highest) : "";
  return fmt::format(
      "this build has kernels for compute capability {0}, but {1} has {2}.{3}; build with "
      "-DMEGATRON_CUDA_ARCHITECTURES={2}{3}{4}, or hide that GPU with CUDA_VISIBLE_DEVICES",
      built, gpu, major, minor, newer);
}

}  // namespace megatron::cuda
