// Components from which the checks build the tested computation. By default those of the machine; a
// deliberate fault replaces one of them without the checks' knowledge.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/group.h"
#include "corpus/batch.h"
#include "kernels/table.h"
#include "parallel/layer_layout.h"
#include "parallel/placement.h"
#include "training/reference_pass.h"

namespace megatron::selftest {

struct MatrixRow;
enum class MatrixTask { next_tokens, objective, rewards, adapters, preferences, predictions };

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
  // The reference of preferences that adapters are trained on, the model without them.
  std::function<std::unique_ptr<training::ReferenceSource>(training::TrainedModel&, DType)>
      reference = [](training::TrainedModel& trained, DType type) {
        return std::make_unique<training::BaseReference>(trained, type);
      };
  // Changes whole sequences of preferences, or of several documents in a check of a model, on the
  // `samples`-th of the ranks with samples of their own.
  std::function<void(int samples, corpus::HostBatch&)> pairs = [](int, corpus::HostBatch&) {};
  // Changes the model that is computed in a check of a model, but not what it is compared with.
  std::function<models::Model(const models::Model&)> model = [](const models::Model& m) {
    return m;
  };
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
  MatrixTask task = MatrixTask::next_tokens;  // of the rows
};
const std::vector<Fault>& faults();
// True if a row of the fault's task shows the fault; other tasks do not make all calls that faults
// change.
bool comes_to(const Fault& fault, const MatrixRow& row);
std::vector<std::string> fault_names();
// Throws Error for an unknown name.
const Fault& fault_named(const std::string& name);

}  // namespace megatron::selftest
