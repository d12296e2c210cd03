// Finds paths by a shell pattern of *, ?, [...] and {a,b}.
#pragma once

#include <string>
#include <vector>

namespace megatron::data {

// The paths that match, sorted. Braces give one pattern for each alternative, which need not match;
// a path that several of them match is there as often. A name that begins with a point is matched
// by a point alone; a backslash takes a character as it is. Throws Error naming --input for a
// pattern that stands for more than a million paths, or 256 MiB of names.
std::vector<std::string> matching_paths(const std::string& pattern);

}  // namespace megatron::data
