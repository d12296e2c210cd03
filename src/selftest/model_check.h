// Loss and gradients of the whole model against its plain form.
#pragma once

#include "selftest/environment.h"
#include "selftest/report.h"
#include "selftest/tiny_models.h"

namespace megatron::selftest {

// Without dropout: the loss of a training step against plain_losses, and the gradient of each
// tensor along a random direction against central differences of plain_losses. reference computes
// in fp64, cpu in fp32.
void check_model(const TinyModel& model, DeviceKind device, const Environment& environment,
                 Report& report);

}  // namespace megatron::selftest
