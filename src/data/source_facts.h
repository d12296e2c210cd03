// What is known of a source without reading it again.
//
// Facts that cost a pass over a file (a digest of the index, sums of lengths, the range of token
// ids) are remembered in a directory, in one small JSON file a source, named by the source's
// identity: sizes, times of change and inode numbers of its files. A directory that cannot be
// written, or a record that does not fit or is damaged (a warning says so), costs only time.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/json.h"
#include "data/token_source.h"

namespace megatron::data {

// Hexadecimal XXH3 of 128 bits (Collet, xxHash): of equal bytes the same on every machine.
std::string digest(std::span<const std::byte> bytes);

// The JSON object of a file of ours. Throws Error naming the file when it is none or lacks a key.
Json read_record(const std::string& file, std::initializer_list<std::string_view> keys);

class SourceFacts {
 public:
  // directory: none, or a source without files: nothing is remembered.
  SourceFacts(const TokenSource& source, const std::optional<std::string>& directory);

  std::optional<int64_t> integer(std::string_view key) const;
  std::optional<std::string> text(std::string_view key) const;
  // Facts are written by remember(), if there are any new ones. Warns when that fails.
  void set(std::string_view key, Json value);
  void remember();

  // The digest of all index bytes, in blocks of 16 MiB whose digests are hashed again. The pass
  // over them looks at every entry first: throws Error naming a damaged one.
  std::string content(ThreadPool& pool);
  // Tokens of sequences [first, first + count), which must be in the source and checked.
  int64_t tokens(int64_t first, int64_t count, ThreadPool& pool);

 private:
  const TokenSource& source_;
  Json identity_, facts_;
  std::string file_;  // empty: nothing is remembered
  bool changed_ = false;
};

}  // namespace megatron::data
