// Layout checks: the results of a run do not depend on how it is divided among ranks.
#pragma once

#include "selftest/environment.h"
#include "selftest/report.h"
#include "selftest/tiny_models.h"

namespace megatron::selftest {

// Compares one rank with all sequences in one micro-batch with 1, 2 and 4 data-parallel ranks as
// threads and micro-batches from 1 sequence up, with and without recompute: gradients, 3 steps of
// SGD (losses and parameters), 3 steps of AdamW, Lion and Muon (losses). The reference device
// computes in fp64, others in fp32. Covers both weightings of tokens: with the mean over
// micro-batches, one rank with the same micro-batch is the baseline.
void check_layouts(const TinyModel& model, DeviceKind device, const Environment& environment,
                   Report& report);

// Checks bf16: the gradients' errors relative to one rank that computes in fp32 with the same
// weights, on 1 and 2 ranks with micro-batches from 1 sequence up, are at most kBf16ErrorFactor
// times those of one bf16 rank with all sequences in one micro-batch.
void check_bf16_layouts(const TinyModel& model, DeviceKind device, const Environment& environment,
                        Report& report);

// Checks that these are bit for bit equal in fp32: a second run, recompute, and 2 and 3 threads per
// rank, on one rank and on two.
void check_bits(const TinyModel& model, DeviceKind device, const Environment& environment,
                Report& report);

}  // namespace megatron::selftest
