// Zip archives with uncompressed entries, including zip64.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>

namespace megatron::checkpoint {

// The bytes of each entry, by name.
using ZipEntries = std::map<std::string, std::span<const std::byte>, std::less<>>;

// True if a file begins like a zip archive.
bool is_zip(std::span<const std::byte> file);

// Returns views of an archive's entries. Names, sizes and offsets are checked against each other
// and the file; checksums are not compared, since that would read the whole file (and torch can be
// configured not to write them). Throws Error naming `path` and the entry for an archive that is
// truncated or damaged, has several parts or two entries of one name, and for compressed or
// encrypted entries.
ZipEntries zip_entries(std::span<const std::byte> file, const std::string& path);

}  // namespace megatron::checkpoint
