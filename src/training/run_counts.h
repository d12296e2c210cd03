// Progress of a run in samples and steps.
#pragma once

#include "resume/trainer_state.h"

namespace megatron::training {

struct RunCounts {
  int64_t consumed = 0;        // samples
  int64_t scheduled = 0;       // those of steps that changed the weights
  int64_t skipped = 0;         // steps that did not
  int64_t skipped_in_row = 0;  // the last ones of this run

  static RunCounts of(const resume::TrainerState& state) {
    return {state.consumed_samples, state.scheduled_samples, state.skipped_steps};
  }
  // Call after a step of `samples` samples.
  void add_step(int64_t samples, bool updated) {
    consumed += samples;
    if (updated) scheduled += samples;
    else ++skipped;
    skipped_in_row = updated ? 0 : skipped_in_row + 1;
  }
};

}  // namespace megatron::training
