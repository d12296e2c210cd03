// Output of `megatron inspect` for models, checkpoints and --save directories.
#pragma once

#include <string>

namespace megatron::cli {

// tensors, here and below: prints every tensor on its own line; otherwise tensors whose names
// differ only in the layer's number share one line.
void inspect_tensors(const std::string& path, bool tensors);  // for a file of weights
void inspect_model(const std::string& path, bool tensors);

// Returns false if --verify was given and found damage, which is printed. Throws Error if the
// directory cannot be opened.
bool inspect_checkpoint(const std::string& path, bool verify, bool tensors);

bool is_save_directory(const std::string& path);
// Prints a list of the directory's contents, the run's log, and the checkpoint from which a run
// would continue.
bool inspect_save_directory(const std::string& path, bool verify, bool tensors);

// log.jsonl of a run, or the directory that holds it.
void inspect_run(const std::string& path);

}  // namespace megatron::cli
