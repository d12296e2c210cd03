// Components from which the checks build the tested computation. By default those of the machine; a
// deliberate fault replaces one of them without the checks' knowledge.
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
  // Wraps the group of all ranks in the group through which a rank makes all its calls, including
  // those of groups split from it; null: no wrapper.
  std::function<std::unique_ptr<comm::Group>(comm::Group&)> wrap = [](comm::Group&) {
    return nullptr;
  };
  // Changes a rank's parameters before they get values. virtual_stages: those of the pipeline.
  std::function<void(std::span<const parallel::Shard>,
                     std::span<const parallel::ModelPart> virtual_stages)>
      place = [](std::span<const parallel::Shard>, std::span<const parallel::ModelPart>) {};
};

// A deliberate fault, which changes the computation at one point and is caught by one of the checks
// or by the layout matrix.
struct Fault {
  std::string name;
  std::string text;  // description of the change
  bool in_checks = false;
  // True for rows of the layout matrix that reach that point; null: the matrix, which compares
  // layouts with one rank, cannot detect the fault.
  std::function<bool(const MatrixRow&)> in_row;
  std::function<Environment()> environment;
  bool of_adapters = false;
};
const std::vector<Fault>& faults();
// True if a row of next tokens, or of adapters for a fault of these, shows the fault; other tasks
// do not make all calls that faults change.
bool comes_to(const Fault& fault, const MatrixRow& row);
std::vector<std::string> fault_names();
// Throws Error for an unknown name.
const Fault& fault_named(const std::string& name);

}  // namespace megatron::selftest
