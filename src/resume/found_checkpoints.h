// Lists the checkpoints in a --save directory, and checks that they are complete.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "checkpoint/checkpoint_directory.h"
#include "models/model.h"

namespace megatron::resume {

enum class Condition {
  whole,       // no damage was found
  model,       // weights without a trainer state, which would say how they were written
  damaged,     // cannot be opened, or checksums differ
  unfinished,  // left by an interrupted save; never loaded
};
std::string_view name(Condition condition);

struct FoundCheckpoint {
  std::string path;
  Condition condition = Condition::whole;
  int64_t bytes = 0;                 // total size of its files
  std::vector<std::string> reasons;  // what is damaged
};

// Called before a checkpoint is read as a model: compares the checksums of all its files except the
// optimizer's, which may be absent. Throws Error naming what is damaged. A directory that is not a
// checkpoint has no checksums.
void require_whole_model(const std::string& path, ThreadPool& pool);

// Opens one directory. verify: also compares its checksums. Does not throw for defects of the
// directory.
FoundCheckpoint look_at_checkpoint(const std::string& path, bool verify, ThreadPool& pool);

// Lists a whole --save directory: the steps, then unfinished ones.
std::vector<FoundCheckpoint> find_checkpoints(const std::string& path, bool verify,
                                              ThreadPool& pool);

// For each tensor on disk, the rows of the parameter that hold it: "layers.0.mlp.up.weight, rows
// 0-63 of 128"; and "transposed" if it is.
std::vector<std::pair<std::string, std::string>> tensor_places(const models::Model& model);

}  // namespace megatron::resume
