#include "data/path_pattern.h"

#include <dirent.h>
#include <fnmatch.h>
#include <sys/stat.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/shorten.h"

namespace megatron::data {
namespace {

// Half-open ranges [begin, end) of the alternatives in a pattern's first pair of braces.
using Alternatives = std::vector<std::pair<size_t, size_t>>;

std::optional<Alternatives> first_braces(std::string_view pattern) {
  Alternatives found;
  int depth = 0;
  for (size_t i = 0, begin = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\') {
      ++i;
    } else if (c == '{') {
      if (++depth == 1) begin = i + 1;
    } else if (depth == 1 && (c == ',' || c == '}')) {
      found.emplace_back(begin, i);
      begin = i + 1;
      if (c == '}') return found;
    } else if (depth > 0 && c == '}') {
      --depth;
    }
  }
  return std::nullopt;  // no brace, or an unclosed one, which is literal
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  const auto close = [](DIR* directory) { closedir(directory); };
  const std::unique_ptr<DIR, decltype(close)> directory(opendir(folder.c_str()), close);
  if (directory == nullptr) return names;  // an unreadable directory has no matches
  while (const dirent* const entry = readdir(directory.get())) names.emplace_back(entry->d_name);
  return names;
}

class Expansion {
 public:
  explicit Expansion(const std::string& pattern) : pattern_(pattern) {}

  void run() {
    std::vector<std::string> open = {pattern_};
    while (!open.empty()) {
      const std::string pattern = std::move(open.back());
      open.pop_back();
      const auto alternatives = first_braces(pattern);
      if (!alternatives) {
        walk("", pattern);
        continue;
      }
      const std::string before = pattern.substr(0, alternatives->front().first - 1),
                        behind = pattern.substr(alternatives->back().second + 1);
      for (const auto& [begin, end] : *alternatives) {
        open.push_back(before + pattern.substr(begin, end - begin) + behind);
        count(open.back());
      }
    }
  }

  std::vector<std::string> found;

 private:
  // Collects all paths below `path` that match `rest`, which has no braces.
  void walk(std::string path, std::string_view rest) {
    for (;;) {
      const size_t slash = rest.find('/');
      const std::string_view component = rest.substr(0, slash);
      const bool last = slash == rest.npos;
      rest.remove_prefix(last ? rest.size() : slash + 1);
      if (component.find_first_of("*?[") != component.npos)
        return walk_folder(path, std::string(component), last, rest);
      for (size_t i = 0; i < component.size(); ++i) {
        if (component[i] == '\\' && i + 1 < component.size()) ++i;
        path += component[i];
      }
      if (last) break;
      path += '/';
    }
    struct stat status{};
    if (lstat(path.c_str(), &status) == 0) found.push_back(std::move(path));
  }

  void walk_folder(const std::string& path, const std::string& component, bool last,
                   std::string_view rest) {
    for (const std::string& name : names_in(path.empty() ? "." : path)) {
      if (fnmatch(component.c_str(), name.c_str(), FNM_PERIOD) != 0) continue;
      count(path + name);
      if (last) {
        found.push_back(path + name);
      } else {
        walk(path + name + "/", rest);
      }
    }
  }

  void count(const std::string& path) {
    constexpr size_t kMaxPaths = 1'000'000, kMaxBytes = size_t{256} << 20;
    bytes_ += path.size();
    MG_CHECK(++paths_ <= kMaxPaths && bytes_ <= kMaxBytes,
             "--input {}: the pattern matches more than {} paths, or {} MiB of names; give a "
             "directory, all files of which are read, or use fewer braces and stars",
             shortened(pattern_, 200), kMaxPaths, kMaxBytes >> 20);
  }

  const std::string& pattern_;
  size_t paths_ = 0, bytes_ = 0;
};

}  // namespace

std::vector<std::string> matching_paths(const std::string& pattern) {
  Expansion expansion(pattern);
  expansion.run();
  std::sort(expansion.found.begin(), expansion.found.end());
  return std::move(expansion.found);
}

}  // namespace megatron::data
