// Lists the files that --input names.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::data {

enum class TextKind {
  // By the file's name: .jsonl, .ndjson or .json (possibly with .gz or .zst) for JSON lines, else
  // text.
  automatic,
  json_lines,  // one JSON object per line, for any name
};

struct InputEntry {
  std::string path;
  int64_t bytes = 0;  // on disk
  bool json_lines = false;
};

// True if a file's name says that it holds JSON lines.
bool named_like_json_lines(std::string_view path);

// Lists the files of each path, in the order of the paths. A path is one of: a file; a directory,
// for its files, recursively, sorted by path, without hidden ones and with a file reachable under
// several names (links) only once; or, if no file has that name, a pattern of *, ?, [...] and
// {a,b}, whose matches are sorted by path and are files or directories as above. Throws Error for a
// path that does not exist, a pattern without match and a directory without a file.
std::vector<InputEntry> list_inputs(const std::vector<std::string>& paths, TextKind kind);

}  // namespace megatron::data
