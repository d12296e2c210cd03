// Compares loss and gradients of the whole model with its plain implementation.
#pragma once

#include "selftest/environment.h"
#include "selftest/report.h"
#include "selftest/tiny_models.h"

namespace megatron::selftest {

// Compares, without dropout, the loss of a training step with plain_losses, and the gradient of
// each tensor along a random direction with central differences of plain_losses. The reference
// device computes in fp64, cpu in fp32.
void check_model(const TinyModel& model, DeviceKind device, const Environment& environment,
                 Report& report);

}  // namespace megatron::selftest
