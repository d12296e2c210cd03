// Whether files are the ones of an earlier run, without reading all of them.
#pragma once

#include <string>

namespace megatron::checkpoint {

// Of a file, or of the files in a directory (not below it): hexadecimal, from names, sizes, and all bytes of small
// files; of files over 4 MB 64 pieces of 64 kB, evenly spread. Throws Error for what cannot be read.
std::string fingerprint(const std::string& path);

}  // namespace megatron::checkpoint
