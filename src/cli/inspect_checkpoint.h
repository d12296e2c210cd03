// What `megatron inspect` says about models, checkpoints and --save directories.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/safetensors.h"

namespace megatron::cli {

void print_tensors(const std::vector<checkpoint::TensorInfo>& tensors);
void inspect_model(const std::string& path);

// False when --verify was asked for and found damage, which is printed. Throws Error when the
// directory cannot be opened.
bool inspect_checkpoint(const std::string& path, bool verify);

bool is_save_directory(const std::string& path);
// A list of what is in it, the run's log, and the checkpoint that a run would go on from.
bool inspect_save_directory(const std::string& path, bool verify);

// log.jsonl of a run, or the directory that holds it.
void inspect_run(const std::string& path);

}  // namespace megatron::cli
