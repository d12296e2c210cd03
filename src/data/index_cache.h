// The indices of GPT data sets on disk: <key>.document_index.npy, .sample_index.npy and
// .shuffle_index.npy, whose bytes are those that Megatron-LM would write, and <key>.json, which
// says what they are.
//
// The key is a digest of all that the indices are made from: the content of the source's index (not
// its name or place), which sequences, sequence length, epochs, seed. So moved, renamed and copied
// data find their indices again, and so do runs whose requests need the same epochs.
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

// Where indices lie: `given`, or by default index_cache/ in the directory that the .idx file of
// `prefix` is in (links followed).
std::string index_cache_directory(const std::string& prefix,
                                  const std::optional<std::string>& given);

class IndexCache {
 public:
  // content: digest of the source's index bytes.
  IndexCache(std::string directory, std::string content, const IndexRequest& request,
             const IndexPlan& plan, int64_t seed);

  const std::string& key() const { return key_; }
  std::string path(std::string_view suffix) const;  // "json", "document_index.npy" ...

  // Maps the indices. Nothing where there are none, or, with a warning, where a file is missing,
  // cut short, of another shape, or does not have the digest in the description: of all its bytes
  // up to 4 MiB, of 64 pieces of 64 KiB all over it from there on.
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

// Writes the indices of a cache's key. Any number of processes may do so at once: each file appears
// whole, the description comes last, and all have the same bytes. Trouble (no space left, a
// directory that cannot be written) ends the writing with a warning, never the program.
class IndexWriter {
 public:
  // source, split: for the reader of the description.
  IndexWriter(const IndexCache& cache, std::string source, std::string split);

  // Starts writing one of the three. By any thread.
  void write(std::string_view name, const IntegerArray& index);
  // All three are on the disk under their names, then the description; false after a warning.
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
