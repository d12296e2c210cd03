// Initial state of a run: weights, checkpoint and trainer state.
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

struct StartingPoint {
  // The model's tensors. If null, the model is initialized randomly.
  std::shared_ptr<const checkpoint::ModelDirectory> weights;
  // Checkpoint that the run resumes from, which includes the weights. Null: the run starts at step
  // 0.
  std::shared_ptr<const checkpoint::CheckpointDirectory> checkpoint;
  TrainerState state;  // state stored in the checkpoint
};

// Steps of a folder of checkpoints that a run with --load tries, the best first: none beyond the
// tracker's, or all if there is no tracker or it is unreadable (logged). Throws Error if the
// tracker names a step and there is none up to it.
std::vector<int64_t> steps_to_try(const SaveDirectory& folder);

// Resolves --load: in a folder of checkpoints the one of --ckpt-step, or of the tracker, or the
// newest, after verification. One that is truncated, altered or partial is logged and the one
// before it is used; if none is intact, throws Error. If there is no checkpoint yet, returns
// nothing and logs it, or throws Error with --exit-on-missing-checkpoint. weights_only: for
// --finetune; --load may then be a Hugging Face directory. processes: those of the run; each
// verifies its share, and all choose the same checkpoint. base: where the base model of an adapter
// is; "": where its checkpoint says.
StartingPoint find_starting_point(const settings::CheckpointSettings& settings, bool weights_only,
                                  comm::Group& processes, int threads,
                                  const std::string& base = {});

}  // namespace megatron::resume
