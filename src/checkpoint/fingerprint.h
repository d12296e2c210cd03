// Recognizes files of an earlier run without reading all of them.
#pragma once

#include <string>

namespace megatron::checkpoint {

// Hexadecimal fingerprint of a file, or of the files in a directory (not recursive): covers names,
// sizes and all bytes of small files; for files over 4 MB, 64 evenly spread pieces of 64 kB. Throws
// Error if something cannot be read. name: of a file, in place of its own.
std::string fingerprint(const std::string& path, const std::string& name = {});

}  // namespace megatron::checkpoint
