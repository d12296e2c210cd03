// The indices of GPT data sets on disk: <key>.document_index.npy, .sample_index.npy and
// .shuffle_index.npy, with the bytes that Megatron-LM would write, and <key>.json, which describes
// them.
//
// The key is a digest of everything that the indices are made from: the content of the source's
// index (not its name or location), the range of sequences, sequence length, epochs, seed. So
// moved, renamed and copied data find their indices again, as do runs whose requests need the same
// epochs.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "base/files.h"
#include "base/json.h"
#include "data/gpt_index.h"

namespace megatron::data {

// Directory of cached indices: `given`, or by default index_cache/ next to the .idx file of
// `prefix` (symlinks resolved).
std::string index_cache_directory(const std::string& prefix,
                                  const std::optional<std::string>& given);

class IndexCache {
 public:
  // content: digest of the source's index bytes.
  IndexCache(std::string directory, std::string content, const IndexRequest& request,
             const IndexPlan& plan, int64_t seed);

  const std::string& key() const { return key_; }
  std::string path(std::string_view suffix) const;  // "json", "document_index.npy" ...

  // Maps the indices. Returns nothing if there are none, or, with a warning, if a file is missing,
  // truncated, of another shape, or does not have the digest in the description: of all its bytes
  // up to 4 MiB, and beyond that of 64 pieces of 64 KiB spread over it.
  std::optional<GptIndices> load() const;

 private:
  friend class IndexWriter;
  Json made_from() const;

  std::string directory_, content_;
  IndexRequest request_;
  IndexPlan plan_;
  int64_t seed_;
  std::string key_;
};

// Writes the indices of a cache's key. Several processes may do so concurrently: each file is
// written atomically, the description comes last, and all write the same bytes. Failures (no space
// left, a directory that cannot be written) end the writing with a warning, never the program.
class IndexWriter {
 public:
  // source, split: recorded in the description for its readers.
  IndexWriter(const IndexCache& cache, std::string source, std::string split);

  // Starts writing one of the three. Thread-safe.
  void write(std::string_view name, const IntegerArray& index);
  // Publishes all three under their names, then the description; returns false after a warning.
  bool commit();

 private:
  void give_up(const char* reason);

  const IndexCache& cache_;
  std::string source_, split_;
  std::mutex mutex_;
  std::array<std::unique_ptr<AtomicFile>, 3> files_;
  std::array<Json, 3> descriptions_;
  bool failed_ = false;
};

}  // namespace megatron::data
