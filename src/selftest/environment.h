// What the checks build the tested computation from. The machine as it is by default; a deliberate
// fault replaces a part of it, and no check knows.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"
#include "kernels/table.h"

namespace megatron::selftest {

struct Environment {
  // Kernels of forward and backward on a device; null: the device's own.
  std::function<const kernels::Table*(DeviceKind)> table = [](DeviceKind) { return nullptr; };
  // The group in whose name gradients are reduced, from the one that does the work; null: that one
  // itself.
  std::function<std::unique_ptr<comm::Group>(comm::Group&)> wrap = [](comm::Group&) {
    return nullptr;
  };
};

// Each fault changes the computation at one point:
//   dropped-all-reduce     a group whose all_reduce does nothing
//   doubled-gradient       embedding_backward adds its gradient twice
//   shifted-rope-pairing   rope pairs (2i, 2i+1) for (i, i + half), and the reverse
//   off-by-one-label       cross_entropy takes the label of the next token
std::vector<std::string> fault_names();
// Throws Error for a name that is not a fault's.
Environment faulty_environment(const std::string& fault);

}  // namespace megatron::selftest
