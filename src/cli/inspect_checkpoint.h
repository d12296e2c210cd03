// What `megatron inspect` says about models, checkpoints and --save directories.
#pragma once

#include <string>

namespace megatron::cli {

// tensors, here and below: every tensor in a line of its own; else those whose names differ in the
// layer's number alone stand in one.
void inspect_tensors(const std::string& path, bool tensors);  // of a file of weights
void inspect_model(const std::string& path, bool tensors);

// False when --verify was asked for and found damage, which is printed. Throws Error when the
// directory cannot be opened.
bool inspect_checkpoint(const std::string& path, bool verify, bool tensors);

bool is_save_directory(const std::string& path);
// A list of what is in it, the run's log, and the checkpoint that a run would go on from.
bool inspect_save_directory(const std::string& path, bool verify, bool tensors);

// log.jsonl of a run, or the directory that holds it.
void inspect_run(const std::string& path);

}  // namespace megatron::cli
