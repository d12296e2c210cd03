#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/progress.h"
#include "cli/command.h"
#include "data/indexed_dataset.h"

namespace megatron::cli {
namespace {

namespace fs = std::filesystem;

struct MergeSettings {
  std::vector<std::string> input;
  std::optional<std::string> output_prefix;
  bool multimodal = false, overwrite = false;
};

std::string without_suffix(const std::string& path) {
  return path.ends_with(".bin") || path.ends_with(".idx") ? path.substr(0, path.size() - 4) : path;
}

void check_pair(const std::string& prefix) {
  for (const char* suffix : {".bin", ".idx"}) {
    MG_CHECK(fs::exists(prefix + suffix),
             "{}{} does not exist; a pair of token files is wanted (--input)", prefix, suffix);
  }
}

// All pairs of a directory, in the order of their file names (so "a-1.bin" comes before "a.bin").
void add_directory(const std::string& folder, const std::string& output,
                   std::vector<std::string>& prefixes) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string path = entry.path().string();
    if (path != without_suffix(path) && entry.is_regular_file())
      names.insert(without_suffix(path) + ".bin");
  }
  size_t found = 0;
  for (const std::string& name : names) {
    const std::string prefix = without_suffix(name);
    std::error_code none;
    if (fs::equivalent(name, output + ".bin", none)) continue;  // of an earlier merge
    check_pair(prefix);
    prefixes.push_back(prefix);
    ++found;
  }
  MG_CHECK(found > 0, "{} holds no pair of token files (--input)", folder);
}

std::vector<std::string> prefixes_of(const MergeSettings& s) {
  std::vector<std::string> prefixes;
  for (const std::string& path : s.input) {
    if (fs::is_directory(path)) {
      add_directory(path, *s.output_prefix, prefixes);
    } else {
      check_pair(without_suffix(path));
      prefixes.push_back(without_suffix(path));
    }
  }
  return prefixes;
}

void check_modes(const data::IndexedDataset& part, bool multimodal) {
  if (part.sequence_count() == 0 || part.multimodal() == multimodal) return;
  if (multimodal) fail("{} has no modes; drop --multimodal", part.path());
  fail("{} has a mode for each sequence; give --multimodal", part.path());
}

void merge_files(const MergeSettings& s, const std::vector<std::string>& prefixes) {
  int64_t total = 0, done = 0;
  for (const std::string& prefix : prefixes)
    total += static_cast<int64_t>(fs::file_size(prefix + ".bin"));
  data::IndexedDatasetBuilder out(*s.output_prefix, data::IndexedDataset(prefixes[0]).dtype(),
                                  s.multimodal);
  Progress progress("merging", total, "B");
  for (const std::string& prefix : prefixes) {
    progress.update(done, prefix);
    check_modes(data::IndexedDataset(prefix), s.multimodal);
    out.add_index(prefix);
    done += static_cast<int64_t>(fs::file_size(prefix + ".bin"));
  }
  progress.update(done);
  progress.finish(fmt::format("{} files", prefixes.size()));
  out.finalize();
  fmt::print("{}.bin/.idx: {} documents, {} sequences, {} tokens of type {} from {} pairs\n",
             *s.output_prefix, out.document_count(), out.sequence_count(), out.token_count(),
             name(out.dtype()), prefixes.size());
}

}  // namespace

int merge(const Arguments& arguments) {
  MergeSettings s;
  Fields f;
  f.add("input", &s.input,
        "directories (all pairs in one, sorted by name) or prefixes of pairs, merged in this "
        "order");
  f.add("output-prefix", &s.output_prefix, "files are <prefix>.bin and .idx");
  f.add_switch("multimodal", &s.multimodal, true, "the pairs hold a mode for each sequence");
  f.add_switch("overwrite", &s.overwrite, true, "replace output files that exist");
  if (const auto code =
          parse("megatron merge --input DIR|PREFIX... --output-prefix P [flags]",
                "Joins pairs of token files (.bin/.idx) into one.", f, {}, arguments)) {
    return *code;
  }
  MG_CHECK(!s.input.empty(), "--input DIR or PREFIX is needed");
  MG_CHECK(s.output_prefix.has_value(), "--output-prefix is needed");
  const std::vector<std::string> prefixes = prefixes_of(s);
  for (const char* suffix : {".bin", ".idx"}) {
    MG_CHECK(s.overwrite || !fs::exists(*s.output_prefix + suffix),
             "{}{} exists; give --overwrite to replace it, or another --output-prefix",
             *s.output_prefix, suffix);
  }
  for (const std::string& prefix : prefixes) {
    std::error_code none;
    MG_CHECK(!fs::equivalent(prefix + ".bin", *s.output_prefix + ".bin", none),
             "{} is both --input and --output-prefix", prefix);
  }
  merge_files(s, prefixes);
  return 0;
}

}  // namespace megatron::cli
