#include "cli/model_rank.h"

#include "comm/gpu/staged.h"
#include "training/model_source.h"

namespace megatron::cli {

ModelRank::ModelRank(const ModelRankOptions& options, const checkpoint::ModelDirectory& directory,
                     const models::Model& model, comm::Group& world)
    : runtime(options.runtime.device_value(world.rank()), options.runtime.threads_per_rank(),
              DeviceKind::cpu, options.runtime.ranks_in_process()),
      groups(options.ranks.layout(),
             comm::for_device(world, runtime.device(), of_device, options.runtime.gpu_backend())),
      stage(training::load_model(directory, model, groups, runtime, options.type, 0)),
      ranks(groups.ranks(true)) {}

}  // namespace megatron::cli
