// What the checks build the tested computation from. The machine as it is by default; a deliberate
// fault replaces a part of it, and no check knows.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/group.h"
#include "kernels/table.h"
#include "parallel/layer_layout.h"
#include "parallel/placement.h"

namespace megatron::selftest {

struct MatrixRow;

struct Environment {
  // Kernels of forward and backward on a device; null: the device's own.
  std::function<const kernels::Table*(DeviceKind)> table = [](DeviceKind) { return nullptr; };
  // The group that a rank makes all its calls through, those of the groups split from it too, from
  // the group of all ranks; null: that one itself.
  std::function<std::unique_ptr<comm::Group>(comm::Group&)> wrap = [](comm::Group&) {
    return nullptr;
  };
  // Changes what a rank's parameters are, before they get values. virtual stages: of the pipeline.
  std::function<void(std::span<const parallel::Shard>,
                     std::span<const parallel::ModelPart> virtual_stages)>
      place = [](std::span<const parallel::Shard>, std::span<const parallel::ModelPart>) {};
};

// A deliberate fault. Each changes the computation at one point, and is caught by one of the checks
// or by the layout matrix.
struct Fault {
  std::string name;
  std::string text;  // what is changed
  bool in_checks = false;
  // Rows of the layout matrix that come to that point; null: the matrix, which compares layouts
  // with one rank, cannot see it.
  std::function<bool(const MatrixRow&)> in_row;
  std::function<Environment()> environment;
};
const std::vector<Fault>& faults();
std::vector<std::string> fault_names();
// Throws Error for a name that is not a fault's.
const Fault& fault_named(const std::string& name);

}  // namespace megatron::selftest
