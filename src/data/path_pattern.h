// Finds paths by a shell pattern of *, ?, [...] and {a,b}.
#pragma once

#include <string>
#include <vector>

namespace megatron::data {

// Returns the matching paths, sorted. Braces give one pattern per alternative, which need not
// match; a path that several of them match is listed as many times. A leading point of a name is
// matched only by a point; a backslash escapes a character. Throws Error naming --input for a
// pattern that expands to more than a million paths, or 256 MiB of names.
std::vector<std::string> matching_paths(const std::string& pattern);

}  // namespace megatron::data
