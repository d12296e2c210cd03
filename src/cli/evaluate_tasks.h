// `megatron eval --tasks`.
#pragma once

#include "base/fields.h"
#include "cli/engine_flags.h"
#include "comm/processes.h"
#include "tasks/task_evaluation.h"
#include "training/evaluation.h"

namespace megatron::cli {

class TaskCommand {
 public:
  void fields(Fields& fields);
  bool is_asked() const { return !settings_.files.empty(); }
  int64_t max_length() const { return engine_.options().max_length; }
  // Throws Error naming a given flag that does not apply to tasks, or that applies only to them.
  void check_flags(const Fields& fields) const;
  // model: --load, tokenizer, precision and device are read.
  int run(const training::EvaluationSettings& model, bool json, const comm::Processes& processes);

 private:
  tasks::TaskSettings settings_;
  EngineFlags engine_;
};

}  // namespace megatron::cli
