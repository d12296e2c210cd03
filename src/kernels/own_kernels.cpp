#include "kernels/own_kernels.h"

#include <string>

#include "base/error.h"
#include "kernels/for_each_kernel.h"

namespace megatron::kernels {
std::vector<std::string_view> composed_kernels(const Table& table) {
  std::vector<std::string_view> names;
  for_each_kernel([&](const auto& kernel) {
    if (kernel.heat == Heat::hot && table.*kernel.member == nullptr) names.push_back(kernel.name);
  });
  return names;
}

void require_own_kernels(const Table& table, DeviceKind kind) {
  const std::vector<std::string_view> composed = composed_kernels(table);
  if (composed.empty()) return;
  std::string names;
  for (const std::string_view one : composed)
    names += (names.empty() ? "" : ", ") + std::string(one);
  fail(
      "{} has no kernel for {}: several other kernels would have to compute it, slowly; use "
      "--device cpu, or --allow-composed to run anyway",
      name(kind), names);
}

}  // namespace megatron::kernels
