#include "data/source_facts.h"

#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/divide.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/thread_pool.h"

namespace megatron::data {
namespace {

// Stored for an index that check() has passed; the name differs from those of weaker checks.
constexpr std::string_view kContent = "checked content";

std::string digest_of(const Json& json) {
  const std::string text = json.dump();
  return digest(std::as_bytes(std::span(text)));
}

}  // namespace

std::string digest(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

Json read_record(const std::string& file, std::initializer_list<std::string_view> keys) {
  Json record = Json::read(file);
  MG_CHECK(record.is_object(), "{} contains no JSON object: it is damaged", file);
  for (const std::string_view key : keys)
    MG_CHECK(record.contains(key),
             "{} has no key '{}': it is damaged, or an earlier version wrote it", file, key);
  return record;
}

SourceFacts::SourceFacts(const TokenSource& source, const std::optional<std::string>& directory)
    : source_(source), identity_(source.identity()), facts_(Json::Object{}) {
  if (identity_.is_null() || !directory) return;
  file_ = fmt::format("{}/source-{}.json", *directory, digest_of(identity_));
  if (access(file_.c_str(), R_OK) != 0) return;
  try {
    const Json found = read_record(file_, {"identity", "facts", "digest"});
    MG_CHECK(found["identity"] == identity_, "{} belongs to a different file", file_);
    MG_CHECK(found["digest"] == Json(digest_of(found["facts"])), "{} is damaged", file_);
    facts_ = found["facts"];
  } catch (const Error& error) {
    log::warning("{}: scanning {} again", error.what(), source.path());
  }
}

std::optional<int64_t> SourceFacts::integer(std::string_view key) const {
  const Json* const value = facts_.find(key);
  return value != nullptr && value->is_integer() ? std::optional(value->as_integer())
                                                 : std::nullopt;
}

std::optional<std::string> SourceFacts::text(std::string_view key) const {
  const Json* const value = facts_.find(key);
  return value != nullptr && value->is_string() ? std::optional(value->as_string()) : std::nullopt;
}

void SourceFacts::set(std::string_view key, Json value) {
  facts_.set(key, std::move(value));
  changed_ = true;
}

void SourceFacts::remember() {
  if (!changed_ || file_.empty()) return;
  changed_ = false;
  try {
    const Json json(Json::Object{{"path", source_.path()},
                                 {"identity", identity_},
                                 {"facts", facts_},
                                 {"digest", digest_of(facts_)}});
    AtomicFile file(file_);
    file.write(json.dump(2) + "\n");
    file.publish();
  } catch (const Error& error) {
    log::warning(
        "the results of scanning {} are not cached, and it will be scanned again next time "
        "(--data-cache-path chooses another location): {}",
        source_.path(), error.what());
  }
}

std::string SourceFacts::content(ThreadPool& pool) {
  constexpr size_t kBlock = size_t{16} << 20;
  if (auto known = text(kContent); known && known->size() == 32) return *known;
  const auto bytes = source_.index_bytes();
  std::vector<XXH128_canonical_t> blocks(static_cast<size_t>(ceil_div(std::ssize(bytes), kBlock)));
  pool.parallel_for(static_cast<int64_t>(blocks.size()), [&](int64_t block, int) {
    const size_t begin = static_cast<size_t>(block) * kBlock;
    const auto part = bytes.subspan(begin, std::min(kBlock, bytes.size() - begin));
    XXH128_canonicalFromHash(&blocks[static_cast<size_t>(block)],
                             XXH3_128bits(part.data(), part.size()));
  });
  source_.check(pool);
  const std::string found = digest(std::as_bytes(std::span(blocks)));
  set(kContent, found);
  return found;
}

int64_t SourceFacts::tokens(int64_t first, int64_t count, ThreadPool& pool) {
  constexpr int64_t kBlock = int64_t{1} << 20;
  const std::string key = fmt::format("tokens of {} sequences from {} on", count, first);
  if (const auto known = integer(key); known && *known >= 0) return *known;
  const Lengths lengths = source_.lengths();
  std::vector<int64_t> sums(static_cast<size_t>(ceil_div(count, kBlock)));
  pool.parallel_for(static_cast<int64_t>(sums.size()), [&](int64_t block, int) {
    const int64_t begin = first + block * kBlock;
    const int64_t end = std::min(begin + kBlock, first + count);
    int64_t sum = 0;
    for (int64_t i = begin; i < end; ++i) sum += lengths[i];
    sums[static_cast<size_t>(block)] = sum;
  });
  const int64_t found = std::accumulate(sums.begin(), sums.end(), int64_t{0});
  set(key, found);
  return found;
}

}  // namespace megatron::data
