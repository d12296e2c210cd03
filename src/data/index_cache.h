// The indices of a GPT data set on disk, under the names that Megatron-LM gives them, so that
// either program finds what the other has built: <md5>-GPTDataset-<split>-{description.txt,
// document_index.npy, sample_index.npy, shuffle_index.npy}, where md5 is that of the description.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/json.h"
#include "data/gpt_index.h"
#include "data/split.h"

namespace megatron::data {

struct GptIndices {
  IntegerArray document, sample, shuffle;
};

struct IndexIdentity {
  std::string dataset_path;  // prefix as given by the user
  std::optional<int64_t> samples;
  Split index_split = Split::train;
  int64_t seed = 0, sequence_length = 0;
  std::optional<std::string> split;  // as given; none with one source a split
  Json tokenizer;                    // object: class, path and every option as text
};

// JSON as Python writes it with an indent of 4.
std::string describe(const IndexIdentity& identity);

// Where indices lie: `given`, or by default <prefix>/cache/GPTDataset_indices.
std::string index_cache_directory(const std::string& prefix,
                                  const std::optional<std::string>& given);

class IndexCache {
 public:
  // directory: none means the default.
  IndexCache(const IndexIdentity& identity, const std::optional<std::string>& directory);

  const std::string& description() const { return description_; }
  const std::string& hash() const { return hash_; }
  std::string path(std::string_view file) const;  // file: "document_index.npy" ...

  // Maps the indices. Nothing when files are missing, or (with a warning) when they are older than
  // `source_file`, damaged or not shaped as planned.
  std::optional<GptIndices> load(const IndexPlan& plan, const std::string& source_file) const;
  // Each file appears whole; the description comes last. A directory that cannot be written is told
  // in a warning, and the indices stay in memory.
  void store(const GptIndices& indices) const;

 private:
  std::string description_, hash_, stem_;
};

}  // namespace megatron::data
