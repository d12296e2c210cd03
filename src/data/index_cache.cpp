#include "data/index_cache.h"

#include <sys/stat.h>

#include "base/error.h"
#include "base/log.h"
#include "data/md5.h"

namespace megatron::data {
namespace {

constexpr const char* kFiles[] = {"description.txt", "document_index.npy", "sample_index.npy",
                                  "shuffle_index.npy"};

std::string quoted(std::string_view text) { return Json(text).dump(-1, true); }

// A JSON object inside another one, four spaces deeper. Line ends stand only between its members.
std::string nested(const Json& object) {
  std::string text;
  for (const char c : object.dump(4, true)) {
    text += c;
    if (c == '\n') text += "    ";
  }
  return text;
}

bool older(const timespec& a, const timespec& b) {
  return a.tv_sec != b.tv_sec ? a.tv_sec < b.tv_sec : a.tv_nsec < b.tv_nsec;
}

}  // namespace

std::string describe(const IndexIdentity& identity) {
  const std::string samples = identity.samples ? fmt::format("{}", *identity.samples) : "null";
  const std::string split = identity.split ? quoted(*identity.split) : "null";
  const std::string matrix =
      identity.split ? split_matrix_text(parse_split(*identity.split), 4) : "null";
  return fmt::format(
      "{{\n    \"class\": \"GPTDataset\",\n    \"dataset_path\": {},\n    \"num_samples\": {},\n   "
      " \"index_split\": \"{}\",\n"
      "    \"random_seed\": {},\n    \"sequence_length\": {},\n    \"split\": {},\n    "
      "\"split_matrix\": {},\n"
      "    \"tokenizer\": {}\n}}",
      quoted(identity.dataset_path), samples, name(identity.index_split), identity.seed,
      identity.sequence_length, split, matrix, nested(identity.tokenizer));
}

std::string index_cache_directory(const std::string& prefix,
                                  const std::optional<std::string>& given) {
  return given ? *given : prefix + "/cache/GPTDataset_indices";
}

IndexCache::IndexCache(const IndexIdentity& identity, const std::optional<std::string>& directory)
    : description_(describe(identity)), hash_(md5_hex(description_)) {
  const std::string folder = index_cache_directory(identity.dataset_path, directory);
  stem_ = fmt::format("{}/{}-GPTDataset-{}-", folder, hash_, name(identity.index_split));
}

std::string IndexCache::path(std::string_view file) const {
  return fmt::format("{}{}", stem_, file);
}

std::optional<GptIndices> IndexCache::load(const IndexPlan& plan,
                                           const std::string& source_file) const {
  struct stat source{};
  const bool has_source = stat(source_file.c_str(), &source) == 0;
  for (const char* file : kFiles) {
    struct stat found{};
    if (stat(path(file).c_str(), &found) != 0) return {};
    if (has_source && older(found.st_mtim, source.st_mtim)) {
      log::warning("{} is older than {}: the data set's indices are built again", path(file),
                   source_file);
      return {};
    }
  }
  try {
    GptIndices indices{IntegerArray::map(path(kFiles[1])), IntegerArray::map(path(kFiles[2])),
                       IntegerArray::map(path(kFiles[3]))};
    const std::vector<int64_t> documents{plan.documents}, rows{plan.samples + 1, 2},
        samples{plan.samples};
    MG_CHECK(indices.document.shape() == documents && indices.sample.shape() == rows &&
                 indices.shuffle.shape() == samples,
             "{} does not fit the data set, which needs {} documents and {} samples", path("*"),
             plan.documents, plan.samples);
    return indices;
  } catch (const Error& error) {
    log::warning("{}: the data set's indices are built again", error.what());
    return {};
  }
}

void IndexCache::store(const GptIndices& indices) const {
  try {
    indices.document.write(path(kFiles[1]));
    indices.sample.write(path(kFiles[2]));
    indices.shuffle.write(path(kFiles[3]));
    write_file(path(kFiles[0]), description_);
  } catch (const Error& error) {
    log::warning(
        "the data set's indices are not cached and will be built again next time "
        "(--data-cache-path names another "
        "place): {}",
        error.what());
  }
}

}  // namespace megatron::data
