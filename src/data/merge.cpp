#include "data/merge.h"

#include <fmt/core.h>

#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/progress.h"
#include "data/indexed_dataset.h"

namespace megatron::data {
namespace {

namespace fs = std::filesystem;

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
    if (path != indexed_dataset_prefix(path) && entry.is_regular_file())
      names.insert(indexed_dataset_prefix(path) + ".bin");
  }
  size_t found = 0;
  for (const std::string& name : names) {
    const std::string prefix = indexed_dataset_prefix(name);
    std::error_code none;
    if (fs::equivalent(name, output + ".bin", none)) continue;  // of an earlier merge
    check_pair(prefix);
    prefixes.push_back(prefix);
    ++found;
  }
  MG_CHECK(found > 0, "{} holds no pair of token files (--input)", folder);
}

std::vector<std::string> prefixes_of(const MergeRequest& request) {
  std::vector<std::string> prefixes;
  for (const std::string& path : request.input) {
    if (fs::is_directory(path)) {
      add_directory(path, request.output_prefix, prefixes);
    } else {
      check_pair(indexed_dataset_prefix(path));
      prefixes.push_back(indexed_dataset_prefix(path));
    }
  }
  return prefixes;
}

void check_modes(const IndexedDataset& part, bool multimodal) {
  if (part.sequence_count() == 0 || part.multimodal() == multimodal) return;
  if (multimodal) fail("{} has no modes; drop --multimodal", part.path());
  fail("{} has a mode for each sequence; give --multimodal", part.path());
}

// What stands in the way of the output.
void check_output(const MergeRequest& request, const std::vector<std::string>& prefixes) {
  for (const char* suffix : {".bin", ".idx"}) {
    MG_CHECK(request.overwrite || !fs::exists(request.output_prefix + suffix),
             "{}{} exists; give --overwrite to replace it, or another --output-prefix",
             request.output_prefix, suffix);
  }
  for (const std::string& prefix : prefixes) {
    std::error_code none;
    MG_CHECK(!fs::equivalent(prefix + ".bin", request.output_prefix + ".bin", none),
             "{} is both --input and --output-prefix", prefix);
  }
}

}  // namespace

MergeResult merge_datasets(const MergeRequest& request) {
  const std::vector<std::string> prefixes = prefixes_of(request);
  check_output(request, prefixes);
  int64_t total = 0, done = 0;
  for (const std::string& prefix : prefixes)
    total += static_cast<int64_t>(fs::file_size(prefix + ".bin"));
  IndexedDatasetBuilder out(request.output_prefix, IndexedDataset(prefixes[0]).dtype(),
                            request.multimodal);
  Progress progress("merging", total, "B");
  for (const std::string& prefix : prefixes) {
    progress.update(done, prefix);
    check_modes(IndexedDataset(prefix), request.multimodal);
    out.add_index(prefix);
    done += static_cast<int64_t>(fs::file_size(prefix + ".bin"));
  }
  progress.update(done);
  progress.finish(fmt::format("{} files", prefixes.size()));
  out.finalize();
  return {.documents = out.document_count(),
          .sequences = out.sequence_count(),
          .tokens = out.token_count(),
          .dtype = out.dtype(),
          .pairs = static_cast<int64_t>(prefixes.size())};
}

}  // namespace megatron::data
