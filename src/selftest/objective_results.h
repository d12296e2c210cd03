// Loss and gradients of a model under an objective, in a layout of ranks.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "selftest/canonical.h"
#include "selftest/expected.h"
#include "selftest/report.h"
#include "selftest/verify.h"
#include "training/objective.h"

namespace megatron::selftest {

struct ObjectiveResults {
  double loss = 0;
  std::map<std::string, double> metrics;
  std::map<int64_t, std::vector<double>> values;  // what the objective read, by sample id
  TensorMap gradients;
};

// One step on the batch, whose sequences are divided among the layout's data-parallel ranks, as one
// micro-batch each. model: its directory.
ObjectiveResults objective_results(const std::string& model, const corpus::HostBatch& batch,
                                   const std::shared_ptr<const training::Objective>& objective,
                                   DeviceKind device, const VerifyOptions& options);

// Compares gradients with tensors `prefix`NAME. unread_row: the row of `table` whose gradient is
// left out, because the other system has none; -1: none.
void compare_gradients(Expected& expected, const std::string& prefix, const TensorMap& gradients,
                       Report& report, const std::string& table = {}, int64_t unread_row = -1);

}  // namespace megatron::selftest
