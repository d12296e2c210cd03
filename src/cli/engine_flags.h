// Flags of commands that run an inference engine, under Megatron-LM's names.
#pragma once

#include <optional>

#include "base/fields.h"
#include "comm/processes.h"
#include "inference/engine.h"
#include "inference/engine_groups.h"
#include "settings/parallel_sizes.h"

namespace megatron::cli {

class EngineFlags {
 public:
  void fields(Fields& f);
  void latent_fields(Fields& f) { options_.latent_fields(f); }
  void check();  // throws Error naming the flag

  const inference::EngineOptions& options() const { return options_; }
  inference::EngineOptions& options() { return options_; }

 private:
  inference::EngineOptions options_;
  std::optional<double> buffer_gb_;
};

// Flags for the ranks among which a model is divided.
class EngineRankFlags {
 public:
  void fields(Fields& f);
  // Throws Error naming the flag, also if a launcher started another number of processes.
  void check(const comm::Processes& processes) const;

  inference::EngineLayout layout() const {
    return {.tensor = static_cast<int>(sizes_.tensor_parallel),
            .stages = static_cast<int>(sizes_.pipeline_parallel),
            .experts = static_cast<int>(sizes_.expert_parallel)};
  }
  int ranks() const { return layout().ranks(); }

 private:
  settings::ParallelSizes sizes_;
};

}  // namespace megatron::cli
