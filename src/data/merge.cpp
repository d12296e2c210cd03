#include "data/merge.h"

#include <fmt/core.h>

#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/machine_limits.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "data/indexed_dataset.h"

namespace megatron::data {
namespace {

namespace fs = std::filesystem;

void check_pair(const std::string& prefix) {
  for (const char* suffix : {".bin", ".idx"}) {
    MG_CHECK(fs::exists(prefix + suffix),
             "{}{} does not exist; a .bin/.idx pair is expected (--input)", prefix, suffix);
  }
}

// Adds all pairs of a directory, in the order of their file names (so "a-1.bin" comes before
// "a.bin").
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
    if (fs::equivalent(name, output + ".bin", none)) continue;  // result of an earlier merge
    check_pair(prefix);
    prefixes.push_back(prefix);
    ++found;
  }
  MG_CHECK(found > 0, "{} contains no .bin/.idx pair (--input)", folder);
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

// Throws if the output may not be written.
void check_output(const MergeRequest& request, const std::vector<std::string>& prefixes) {
  std::vector<std::string> inputs;
  for (const std::string& prefix : prefixes)
    for (const char* suffix : {".bin", ".idx"}) inputs.push_back(prefix + suffix);
  check_dataset_output(request.output_prefix, request.overwrite, inputs);
}

// Reads every index completely, so that damage is found before anything is written.
void check_inputs(const MergeRequest& request, const std::vector<std::string>& prefixes) {
  ThreadPool pool(available_processors());
  const DType dtype = IndexedDataset(prefixes[0]).dtype();
  for (const std::string& prefix : prefixes) {
    const IndexedDataset part(prefix);
    part.check(pool);
    check_modes(part, request.multimodal);
    MG_CHECK(part.dtype() == dtype,
             "{} has {} tokens and cannot be merged with {}, which has {}: preprocess it again "
             "with the same vocabulary size",
             prefix, name(part.dtype()), prefixes[0], name(dtype));
  }
}

}  // namespace

MergeResult merge_datasets(const MergeRequest& request) {
  const std::vector<std::string> prefixes = prefixes_of(request);
  check_output(request, prefixes);
  check_inputs(request, prefixes);
  int64_t total = 0, done = 0;
  for (const std::string& prefix : prefixes)
    total += static_cast<int64_t>(fs::file_size(prefix + ".bin"));
  IndexedDatasetBuilder out(request.output_prefix, IndexedDataset(prefixes[0]).dtype(),
                            request.multimodal);
  Progress progress("merging", total, "B");
  for (const std::string& prefix : prefixes) {
    progress.update(done, prefix);
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
