// Zip archives whose entries are stored as they are, zip64 too.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace megatron::checkpoint {

// The bytes of each entry, by name.
using ZipEntries = std::map<std::string, std::span<const std::byte>, std::less<>>;

// Whether a file begins as zip archives do.
bool is_zip(std::span<const std::byte> file);

// What lies in an archive, as views of it. Names, sizes and places are checked against each other
// and the file; checksums are not compared, which would read all of it (and torch can be set to
// write none). Throws Error naming `path` and the entry for an archive that is truncated or damaged,
// has several parts or two entries of one name, and for entries that are compressed or encrypted.
ZipEntries zip_entries(std::span<const std::byte> file, const std::string& path);

}  // namespace megatron::checkpoint
