// One of the ranks among which a model is divided for inference.
#pragma once

#include <memory>

#include "checkpoint/model_directory.h"
#include "cli/engine_flags.h"
#include "inference/engine_groups.h"
#include "models/stage.h"
#include "settings/runtime_settings.h"

namespace megatron::cli {

struct ModelRankOptions {
  EngineRankFlags ranks;
  settings::RuntimeSettings runtime;
  DType type = DType::f32;
  checkpoint::ReadingOptions reading = {};
  int64_t max_length = 0;  // --inference-max-seq-length, for models loaded later
};

// Holds the rank's part of a directory's weights. Construction is collective over the world, which
// must outlive it.
struct ModelRank {
  ModelRank(const ModelRankOptions& options, const checkpoint::ModelDirectory& directory,
            const models::Model& model, comm::Group& world);

  Runtime runtime;
  std::unique_ptr<comm::Group> of_device;
  const inference::EngineGroups groups;
  const std::unique_ptr<models::Stage> stage;
  const inference::EngineRanks ranks;  // the ranks that it leads
};

}  // namespace megatron::cli
