// Checks that a checkpoint's files are the ones that were written.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "checkpoint/file_list.h"

namespace megatron::checkpoint {

// A range of a file whose checksum differs from the one that was written.
struct Damage {
  // Tensor is "" for the header of a file of tensors, or for any other whole file.
  std::string file, tensor;
  uint64_t found = 0, written = 0;

  std::string text() const;  // "model.safetensors: tensor 'lm_head.weight' has the checksum ..."
};

// Compares the checksums of `files` in `directory`, in their order; if there are several callers,
// caller `part` of `parts` checks its share of the bytes. Throws Error for a file that cannot be
// read as listed.
std::vector<Damage> find_damage(const std::string& directory, std::span<const ListedFile> files,
                                ThreadPool& pool, int part = 0, int parts = 1);

}  // namespace megatron::checkpoint
