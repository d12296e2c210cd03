#include "data/token_check.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/progress.h"
#include "data/md5.h"

namespace megatron::data {
namespace {

constexpr int64_t kWorthALine = int64_t{4} << 30;  // bytes that take more than a moment to read

int64_t nanoseconds(const timespec& time) {
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// What changes when the files do.
Json identity(const std::string& prefix) {
  Json json(Json::Object{{"dataset_path", prefix}});
  for (const char* suffix : {"bin", "idx"}) {
    const std::string file = prefix + "." + suffix;
    struct stat status{};
    MG_CHECK(stat(file.c_str(), &status) == 0, "{} cannot be read", file);
    json.set(std::string(suffix) + "_bytes", int64_t{status.st_size});
    json.set(std::string(suffix) + "_changed_ns", nanoseconds(status.st_mtim));
  }
  return json;
}

std::optional<TokenRange> recall(const std::string& file, const Json& wanted) {
  if (access(file.c_str(), R_OK) != 0) return {};
  try {
    const Json found = Json::read(file);
    if (found["of"] != wanted) return {};
    return TokenRange{found["smallest"].as_integer(), found["largest"].as_integer()};
  } catch (const Error& error) {
    log::warning("{}: the token ids are checked again", error.what());
    return {};
  }
}

}  // namespace

std::optional<TokenRange> remembered_token_range(const IndexedDataset& set,
                                                 const std::optional<std::string>& directory) {
  const Json of = identity(set.path());
  std::string file;
  if (directory) {
    file = fmt::format("{}/{}-token_range.json", *directory, md5_hex(set.path()));
    if (const auto range = recall(file, of)) return range;
  }
  const auto bytes = static_cast<int64_t>(set.all_bytes().size());
  if (bytes >= kWorthALine) {
    log::info("{}.bin: checking {} of token ids{}", set.path(),
              format_bytes(static_cast<double>(bytes)), directory ? ", once" : "");
  }
  const auto range = set.token_range();
  if (!range || !directory) return range;
  try {
    const Json json(
        Json::Object{{"of", of}, {"smallest", range->smallest}, {"largest", range->largest}});
    write_file(file, json.dump(2) + "\n");
  } catch (const Error& error) {
    log::warning(
        "the range of the token ids is not remembered and will be looked up again next "
        "time (--data-cache-path names another place): {}",
        error.what());
  }
  return range;
}

void check_token_ids(const IndexedDataset& set, int64_t vocabulary,
                     const std::optional<std::string>& directory) {
  if (set.dtype() == DType::u8 && vocabulary > 0xff) return;
  if (set.dtype() == DType::u16 && vocabulary > 0xffff) return;
  const auto range = remembered_token_range(set, directory);
  if (!range) return;
  MG_CHECK(
      range->largest < vocabulary,
      "{}.bin holds token id {}, and the vocabulary has {} tokens (--vocab-size, or the model's; "
      "ids 0 to {}): use the "
      "tokenizer that made the data, a model with that vocabulary, or preprocess the text again",
      set.path(), range->largest, vocabulary, vocabulary - 1);
  MG_CHECK(range->smallest >= 0,
           "{}.bin holds token id {}, and ids start at 0: preprocess the text again", set.path(),
           range->smallest);
}

}  // namespace megatron::data
