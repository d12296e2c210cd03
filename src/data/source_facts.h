// Facts about a source that are remembered, so that it need not be read again.
//
// Facts that cost a pass over a file (a digest of the index, sums of lengths, the range of token
// ids) are stored in a directory, in one small JSON file per source, named by the source's
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

// Hexadecimal 128-bit XXH3 (Collet, xxHash): equal bytes have the same digest on every machine.
std::string digest(std::span<const std::byte> bytes);

// Reads a JSON object that this program wrote. Throws Error naming the file if it is not one or
// lacks a key.
Json read_record(const std::string& file, std::initializer_list<std::string_view> keys);

class SourceFacts {
 public:
  // directory: none, or a source without files: nothing is stored.
  SourceFacts(const TokenSource& source, const std::optional<std::string>& directory);

  std::optional<int64_t> integer(std::string_view key) const;
  std::optional<std::string> text(std::string_view key) const;
  // remember() writes the facts if there are new ones, and warns if that fails.
  void set(std::string_view key, Json value);
  void remember();

  // Digest of all index bytes, in blocks of 16 MiB whose digests are hashed again. Every entry is
  // checked first: throws Error naming a damaged one.
  std::string content(ThreadPool& pool);
  // Tokens of sequences [first, first + count), which must be in the source and checked.
  int64_t tokens(int64_t first, int64_t count, ThreadPool& pool);

 private:
  const TokenSource& source_;
  Json identity_, facts_;
  std::string file_;  // empty: nothing is cached
  bool changed_ = false;
};

}  // namespace megatron::data
