// What a run begins with, besides fresh weights.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/thread_pool.h"
#include "checkpoint/checkpoint_directory.h"
#include "comm/group.h"
#include "resume/save_directory.h"
#include "resume/trainer_state.h"
#include "settings/checkpoint_settings.h"

namespace megatron::resume {

struct Beginning {
  // The model's tensors; null: they are initialised.
  std::shared_ptr<const checkpoint::ModelDirectory> weights;
  // What a run is resumed from; weights lie in it. Null: step 0.
  std::shared_ptr<const checkpoint::CheckpointDirectory> checkpoint;
  TrainerState state;  // of the checkpoint
};

// Steps of a folder of checkpoints that a run with --load tries, the best first: none beyond the
// tracker's, all where there is no tracker or it holds nonsense (logged). Throws Error where the
// tracker names a step, and none up to it is there.
std::vector<int64_t> steps_to_try(const SaveDirectory& folder);

// What --load names: of a folder of checkpoints the one of --ckpt-step, or of the tracker, or the
// newest; verified. One that is truncated, altered or partial is logged and the one before it taken;
// none that is whole: Error. No checkpoint yet: nothing, logged too, or Error with
// --exit-on-missing-checkpoint.
//   weights_only: --finetune means --load, which may be a Hugging Face directory then
//   processes: those of the run; each verifies its share, and all choose the same
Beginning find_beginning(const settings::CheckpointSettings& settings, bool weights_only,
                         comm::Group& processes, int threads);

}  // namespace megatron::resume
