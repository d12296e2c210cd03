#include "data/input_list.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string_view>

#include "base/error.h"
#include "data/path_pattern.h"

namespace megatron::data {
namespace {

namespace fs = std::filesystem;

std::string_view without_packing(std::string_view path) {
  for (const std::string_view suffix : {".gz", ".zst"}) {
    if (path.ends_with(suffix)) return path.substr(0, path.size() - suffix.size());
  }
  return path;
}

class Listing {
 public:
  explicit Listing(TextKind kind) : kind_(kind) {}

  void add(const std::string& path) {
    struct stat status{};
    if (stat(path.c_str(), &status) == 0) return add_existing(path, status);
    MG_CHECK(path.find_first_of("*?[{") != path.npos,
             "{} does not exist or cannot be read (--input)", path);
    add_matches(path);
  }

  std::vector<InputEntry> entries;

 private:
  void add_existing(const std::string& path, const struct stat& status) {
    if (S_ISDIR(status.st_mode)) return add_directory(path);
    entries.push_back(entry(path, status.st_size));
  }

  InputEntry entry(const std::string& path, int64_t bytes) const {
    return {path, bytes, kind_ == TextKind::json_lines || named_like_json_lines(path)};
  }

  void add_matches(const std::string& pattern) {
    const std::vector<std::string> matches = matching_paths(pattern);
    MG_CHECK(!matches.empty(), "no file matches the pattern {} (--input)", pattern);
    for (const std::string& match : matches) {
      struct stat status{};
      MG_CHECK(stat(match.c_str(), &status) == 0,
               "{} does not exist or cannot be read (--input {})", match, pattern);
      add_existing(match, status);
    }
  }

  void add_directory(const std::string& path) {
    std::vector<std::string> plain, links;
    walk(path, plain, links);
    std::sort(plain.begin(), plain.end());
    std::sort(links.begin(), links.end());
    std::set<std::pair<dev_t, ino_t>> seen;
    std::vector<InputEntry> files;
    for (const auto* group : {&plain, &links}) {
      for (const std::string& file : *group) {
        struct stat status{};
        if (stat(file.c_str(), &status) == 0 && seen.emplace(status.st_dev, status.st_ino).second)
          files.push_back(entry(file, status.st_size));
      }
    }
    MG_CHECK(!files.empty(), "{} contains no files (--input)", path);
    std::sort(files.begin(), files.end(),
              [](const InputEntry& a, const InputEntry& b) { return a.path < b.path; });
    entries.insert(entries.end(), files.begin(), files.end());
  }

  void walk(const std::string& path, std::vector<std::string>& plain,
            std::vector<std::string>& links) const {
    std::error_code error;
    auto at = fs::recursive_directory_iterator(path, error);
    for (; !error && at != fs::recursive_directory_iterator(); at.increment(error)) {
      const std::string name = at->path().string();
      if (at->path().filename().string().starts_with('.')) {
        at.disable_recursion_pending();
        continue;
      }
      std::error_code unreadable;
      if (!at->is_regular_file(unreadable))
        continue;  // follows links; a dangling one is not a file
      (at->is_symlink(unreadable) ? links : plain).push_back(name);
    }
    MG_CHECK(!error, "cannot read the directory {}: {}", path, error.message());
  }

  TextKind kind_;
};

}  // namespace

bool named_like_json_lines(std::string_view path) {
  path = without_packing(path);
  return path.ends_with(".jsonl") || path.ends_with(".ndjson") || path.ends_with(".json");
}

std::vector<InputEntry> list_inputs(const std::vector<std::string>& paths, TextKind kind) {
  Listing listing(kind);
  for (const std::string& path : paths) listing.add(path);
  return std::move(listing.entries);
}

}  // namespace megatron::data
