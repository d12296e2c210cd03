// An environment in which one kernel of the host's tables is another function.
#pragma once

#include <map>
#include <memory>

#include "selftest/environment.h"

namespace megatron::selftest {

template <auto entry, auto changed>
Environment with_kernel() {
  auto tables = std::make_shared<std::map<DeviceKind, kernels::Table>>();
  for (const DeviceKind kind : {DeviceKind::reference, DeviceKind::cpu})
    tables->emplace(kind, kernels::table(kind)).first->second.*entry = changed;
  Environment environment;
  environment.table = [tables](DeviceKind kind) { return &tables->at(kind); };
  return environment;
}

}  // namespace megatron::selftest
