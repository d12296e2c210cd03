// Deliberate faults of state spaces.
#pragma once

#include <vector>

#include "selftest/environment.h"

namespace megatron::selftest {

std::vector<Fault> faults_of_state_spaces();

}  // namespace megatron::selftest
