// Merges several pairs of token files into one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace megatron::data {

struct MergeRequest {
  // Prefixes, or directories: all pairs in each, in the order of their file names.
  std::vector<std::string> input;
  std::string output_prefix;
  bool multimodal = false;  // pairs store a mode for each sequence
  bool overwrite = false;
};

struct MergeResult {
  int64_t documents = 0, sequences = 0, tokens = 0;
  DType dtype = DType::i32;  // of the tokens
  int64_t pairs = 0;         // number of input pairs
};

// Merges in the order of the input; both files appear atomically. Throws Error, before anything is
// written, for a pair that is incomplete or damaged, an output that exists or is one of the inputs,
// and pairs that differ in type or in having modes.
MergeResult merge_datasets(const MergeRequest& request);

}  // namespace megatron::data
