// Flags of the commands that run an inference engine, by Megatron-LM's names.
#pragma once

#include <optional>

#include "base/fields.h"
#include "inference/engine.h"

namespace megatron::cli {

class EngineFlags {
 public:
  void fields(Fields& f);
  void check();  // throws Error naming the flag

  const inference::EngineOptions& options() const { return options_; }
  inference::EngineOptions& options() { return options_; }

 private:
  inference::EngineOptions options_;
  std::optional<double> buffer_gb_;
};

}  // namespace megatron::cli
