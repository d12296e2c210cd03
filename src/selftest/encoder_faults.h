// Deliberate faults of encoders and encoder-decoders, which the checks of their models catch.
#pragma once

#include <vector>

#include "selftest/environment.h"

namespace megatron::selftest {

std::vector<Fault> faults_of_encoders();

}  // namespace megatron::selftest
