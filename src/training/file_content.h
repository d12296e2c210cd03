// Short texts that identify the content of files named by settings: equal for equal content,
// whatever the paths.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "base/thread_pool.h"

namespace megatron::training {

// All throw Error naming what cannot be read. A digest is XXH3, 16 hexadecimal digits.

// Digest of all bytes.
std::string file_content(const std::string& path);
// Digest of the size and a few pieces of each file, in the order given; of all bytes of files up to
// 1 MiB.
std::string sampled_content(std::span<const std::string> paths);
// Digest of the tokenizer's files and the chat template in a directory, or of a tokenizer's file.
std::string tokenizer_content(const std::string& path);
// Digest of token files: all of .idx, from the cache if an earlier run has read it
// (data/source_facts.h), and the size and a few pieces of .bin.
std::string token_files_content(const std::string& prefix,
                                const std::optional<std::string>& cache_path, ThreadPool& pool);
// The checkpoint or model at a path: "iteration 4 of 2, 4, content 5d41402abc4b2a76" in a folder of
// checkpoints, "content ..." of a model directory, "no checkpoint" or "nothing". A model's content
// covers its small files and weights; optimizer files are covered by the checksums of a checkpoint.
std::string checkpoint_content(const std::string& path, std::optional<int64_t> step);

}  // namespace megatron::training
