#include "data/index_cache.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "data/source_facts.h"

namespace megatron::data {
namespace {

constexpr std::array<std::string_view, 3> kNames = {"document_index", "sample_index",
                                                    "shuffle_index"};
constexpr int64_t kVersion = 1;  // version of how indices are built and hashed

constexpr size_t kPiece = size_t{64} << 10, kPieces = 64;

std::string digest_of(std::span<const std::byte> bytes) {
  if (bytes.size() <= kPiece * kPieces) return digest(bytes);
  std::string digests;
  for (size_t i = 0; i < kPieces; ++i) {
    const size_t begin = (bytes.size() - kPiece) / (kPieces - 1) * i;
    digests += digest(bytes.subspan(begin, kPiece));
  }
  digests += digest(bytes.last(kPiece));
  return digest(std::as_bytes(std::span(digests)));
}

Json description_of(const IntegerArray& index) {
  Json::Array shape(index.shape().begin(), index.shape().end());
  return Json(Json::Object{{"type", name(index.type())},
                           {"shape", std::move(shape)},
                           {"digest", digest_of(index.bytes())}});
}

}  // namespace

std::string index_cache_directory(const std::string& prefix,
                                  const std::optional<std::string>& given) {
  namespace fs = std::filesystem;
  if (given) return *given;
  std::error_code error;
  fs::path file = fs::canonical(prefix + ".idx", error);
  if (error) file = prefix + ".idx";
  return (file.parent_path() / "index_cache").string();
}

IndexCache::IndexCache(std::string directory, std::string content, const IndexRequest& request,
                       const IndexPlan& plan, int64_t seed)
    : directory_(std::move(directory)),
      content_(std::move(content)),
      request_(request),
      plan_(plan),
      seed_(seed) {
  const std::string text = made_from().dump();
  key_ = digest(std::as_bytes(std::span(text)));
}

// The requested number of samples matters only through the epochs.
Json IndexCache::made_from() const {
  return Json(Json::Object{{"version", kVersion},
                           {"content", content_},
                           {"first_sequence", request_.first_sequence},
                           {"sequences", request_.sequences},
                           {"sequence_length", request_.sequence_length},
                           {"extra_tokens", request_.extra_tokens},
                           {"drop_last_partial", request_.drop_last_partial},
                           {"epochs", plan_.epochs},
                           {"separate_final_epoch", plan_.separate_final_epoch},
                           {"seed", seed_}});
}

std::string IndexCache::path(std::string_view suffix) const {
  return fmt::format("{}/{}.{}", directory_, key_, suffix);
}

std::optional<GptIndices> IndexCache::load() const {
  const std::string description = path("json");
  if (access(description.c_str(), F_OK) != 0) return {};
  try {
    const Json found = read_record(description, {"made_from", kNames[0], kNames[1], kNames[2]});
    MG_CHECK(found["made_from"] == made_from(), "{} describes different indices", description);
    const std::array<std::vector<int64_t>, 3> shapes = {
        {{plan_.documents}, {plan_.samples + 1, 2}, {plan_.samples}}};
    std::vector<IntegerArray> arrays;
    for (size_t i = 0; i < kNames.size(); ++i) {
      const std::string file = path(fmt::format("{}.npy", kNames[i]));
      arrays.push_back(IntegerArray::map(file));
      MG_CHECK(arrays[i].shape() == shapes[i] && description_of(arrays[i]) == found[kNames[i]],
               "{} does not match {}: it is damaged", file, description);
    }
    return GptIndices{std::move(arrays[0]), std::move(arrays[1]), std::move(arrays[2])};
  } catch (const Error& error) {
    log::warning("{}: rebuilding the data set's indices", error.what());
    return {};
  }
}

IndexWriter::IndexWriter(const IndexCache& cache, std::string source, std::string split)
    : cache_(cache), source_(std::move(source)), split_(std::move(split)) {}

void IndexWriter::give_up(const char* reason) {
  const std::lock_guard lock(mutex_);
  if (failed_) return;
  failed_ = true;
  log::warning(
      "the data set's indices are not cached and will be rebuilt next time (--data-cache-path "
      "chooses another location): {}",
      reason);
}

void IndexWriter::write(std::string_view name, const IntegerArray& index) {
  try {
    const auto i = static_cast<size_t>(std::ranges::find(kNames, name) - kNames.begin());
    MG_ASSERT(i < kNames.size());
    files_[i] = std::make_unique<AtomicFile>(cache_.path(fmt::format("{}.npy", name)));
    index.write(*files_[i]);
    descriptions_[i] = description_of(index);
  } catch (const Error& error) {
    give_up(error.what());
  }
}

bool IndexWriter::commit() {
  if (failed_) return false;
  try {
    Json description(Json::Object{{"what", "sample order of a GPT data set"},
                                  {"source", source_},
                                  {"split", split_},
                                  {"made_from", cache_.made_from()},
                                  {"tokens_per_epoch", cache_.request_.tokens_per_epoch},
                                  {"samples", cache_.plan_.samples}});
    for (size_t i = 0; i < kNames.size(); ++i) description.set(kNames[i], descriptions_[i]);
    AtomicFile last(cache_.path("json"));
    last.write(description.dump(2) + "\n");
    // Every byte of small arrays is checked before use, so that thousands of small data sets need
    // not wait for the disk.
    const bool small = index_bytes(cache_.plan_) <= static_cast<int64_t>(kPiece * kPieces);
    const auto finish = [small](AtomicFile& file) { small ? file.publish() : file.commit(); };
    for (const auto& file : files_) finish(*file);
    finish(last);
  } catch (const Error& error) {
    give_up(error.what());
  }
  return !failed_;
}

}  // namespace megatron::data
