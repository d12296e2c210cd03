#include "data/indexed_dataset.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>

#include "base/divide.h"
#include "base/error.h"
#include "base/thread_pool.h"

namespace megatron::data {
namespace {

constexpr int64_t kHeaderBytes = 34;
constexpr std::array kTypeOfCode = {DType::u8,  DType::i8,  DType::i16, DType::i32,
                                    DType::i64, DType::f64, DType::f32, DType::u16};

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// To is int32_t or int64_t. Values of From that To cannot hold are errors.
template <class From, class To>
void copy_tokens(const std::byte* from, std::span<To> out, const std::string& prefix,
                 int64_t sequence) {
  for (size_t i = 0; i < out.size(); ++i) {
    const From value = load<From>(from + i * sizeof(From));
    bool fits = true;
    if constexpr (std::is_floating_point_v<From>) {
      constexpr From kLimit = sizeof(To) == 4 ? From(2147483648.0) : From(9223372036854775808.0);
      fits = value >= -kLimit && value < kLimit;
      fits = fits && static_cast<From>(static_cast<To>(value)) == value;
    } else if constexpr (sizeof(From) > sizeof(To)) {
      fits = value >= std::numeric_limits<To>::min() && value <= std::numeric_limits<To>::max();
    }
    MG_CHECK(fits, "{}.bin: sequence {} contains {}, which is not a {}-bit token id", prefix,
             sequence, value, 8 * sizeof(To));
    out[i] = static_cast<To>(value);
  }
}

template <class To>
void copy_as(DType type, const std::byte* from, std::span<To> out, const std::string& prefix,
             int64_t sequence) {
  switch (type) {
    case DType::u8: return copy_tokens<uint8_t>(from, out, prefix, sequence);
    case DType::i8: return copy_tokens<int8_t>(from, out, prefix, sequence);
    case DType::i16: return copy_tokens<int16_t>(from, out, prefix, sequence);
    case DType::u16: return copy_tokens<uint16_t>(from, out, prefix, sequence);
    case DType::i32: return copy_tokens<int32_t>(from, out, prefix, sequence);
    case DType::i64: return copy_tokens<int64_t>(from, out, prefix, sequence);
    case DType::f32: return copy_tokens<float>(from, out, prefix, sequence);
    case DType::f64: return copy_tokens<double>(from, out, prefix, sequence);
    default: MG_ASSERT(false);
  }
}

int64_t nanoseconds(const timespec& time) {
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// Renaming or moving a file changes at most its status change time.
Json identity_of(const std::string& prefix) {
  Json json{Json::Object{}};
  for (const char* suffix : {"idx", "bin"}) {
    const std::string file = fmt::format("{}.{}", prefix, suffix);
    struct stat status{};
    MG_CHECK(::stat(file.c_str(), &status) == 0,
             "cannot open '{}': {}; a data set is given by the prefix of its .bin/.idx pair; a "
             "blend by alternating weights and prefixes: 0.7 a 0.3 b",
             file, std::strerror(errno));
    json.set(suffix, Json::Array{int64_t{status.st_size}, nanoseconds(status.st_mtim),
                                 nanoseconds(status.st_ctim), static_cast<int64_t>(status.st_ino)});
  }
  return json;
}

}  // namespace

std::string indexed_dataset_prefix(const std::string& path) {
  return path.ends_with(".bin") || path.ends_with(".idx") ? path.substr(0, path.size() - 4) : path;
}

bool indexed_dataset_exists(const std::string& prefix) {
  return access((prefix + ".idx").c_str(), R_OK) == 0 &&
         access((prefix + ".bin").c_str(), R_OK) == 0;
}

DType token_type_for_vocabulary(std::optional<int64_t> vocabulary_size) {
  return vocabulary_size && *vocabulary_size < 65500 ? DType::u16 : DType::i32;
}

IndexedDataset::IndexedDataset(std::string prefix, IndexedDatasetOptions options)
    : prefix_(std::move(prefix)),
      identity_(identity_of(prefix_)),
      idx_(prefix_ + ".idx"),
      bin_(prefix_ + ".bin", options.map_tokens) {
  MG_CHECK(identity_of(prefix_) == identity_,
           "{}.idx and .bin are being written while they are opened: try again when they are "
           "complete",
           prefix_);
  check_header();
  check_ends();
}

void IndexedDataset::check_header() {
  const auto idx = idx_.bytes();
  const int64_t size = static_cast<int64_t>(idx.size());
  MG_CHECK(size >= kHeaderBytes,
           "{}.idx has {} bytes; a token index has at least {}: the file is truncated", prefix_,
           size, kHeaderBytes);
  MG_CHECK(std::memcmp(idx.data(), kIndexMagic.data(), kIndexMagic.size()) == 0,
           "{}.idx is not a token index: it does not start with MMIDIDX", prefix_);
  const auto version = load<uint64_t>(&idx[9]);
  MG_CHECK(version == 1, "{}.idx has version {}; only version 1 is supported", prefix_, version);
  const auto code = load<uint8_t>(&idx[17]);
  MG_CHECK(code >= 1 && code <= kTypeOfCode.size(),
           "{}.idx has element type {}; 1 to 8 are "
           "supported",
           prefix_, code);
  dtype_ = kTypeOfCode[code - 1];
  item_ = size_of(dtype_);

  const auto sequences = load<uint64_t>(&idx[18]);
  const auto entries = load<uint64_t>(&idx[26]);
  const auto left = static_cast<uint64_t>(size - kHeaderBytes);
  MG_CHECK(sequences <= left / 12 && entries <= (left - 12 * sequences) / 8,
           "{}.idx has {} bytes, too few for {} sequences and {} documents: the file is truncated",
           prefix_, size, sequences, entries == 0 ? 0 : entries - 1);
  MG_CHECK(entries >= 1,
           "{}.idx has no document entry, not even the first one: the file is damaged", prefix_);
  const uint64_t rest = left - 12 * sequences - 8 * entries;
  MG_CHECK(rest == 0 || rest == sequences,
           "{}.idx has {} bytes after its tables; expected 0, or {} modes", prefix_, rest,
           sequences);
  sequences_ = static_cast<int64_t>(sequences);
  documents_ = static_cast<int64_t>(entries) - 1;
  lengths_ = idx.data() + kHeaderBytes;
  pointers_ = lengths_ + 4 * sequences_;
  document_entries_ = pointers_ + 8 * sequences_;
  if (rest > 0) modes_ = document_entries_ + 8 * (documents_ + 1);
}

void IndexedDataset::check_ends() const {
  if (sequences_ > 0) check_sequences(sequences_ - 1, sequences_);
  const int64_t last = sequences_ - 1;
  const int64_t filled = sequences_ == 0 ? 0 : pointer(last) + length(last) * item_;
  MG_CHECK(filled == bin_.size(),
           "{}.bin has {} bytes, and the sequences of {}.idx end at byte {}: one of the files is "
           "damaged or they do not belong together",
           prefix_, bin_.size(), prefix_, filled);
  MG_CHECK(document_entry(0) == 0, "{}.idx: document 0 starts at sequence {}: the file is damaged",
           prefix_, document_entry(0));
  MG_CHECK(document_entry(documents_) == sequences_,
           "{}.idx: the documents end at sequence {}, but there are {}: the file is damaged",
           prefix_, document_entry(documents_), sequences_);
}

void IndexedDataset::refuse(int64_t sequence) const {
  const int64_t tokens = load<int32_t>(lengths_ + 4 * sequence);
  MG_CHECK(tokens >= 0, "{}.idx: sequence {} has length {}: the file is damaged", prefix_, sequence,
           tokens);
  fail(
      "{}: sequence {} ({} tokens at byte {}) ends after the {} bytes of {}.bin: one of the "
      "files is truncated or they do not belong together",
      prefix_, sequence, tokens, pointer(sequence), bin_.size(), prefix_);
}

void IndexedDataset::check_sequences(int64_t begin, int64_t end) const {
  const int64_t bytes = bin_.size(), item = item_;
  const auto bad = [=, this](int64_t i) {
    const int64_t tokens = load<int32_t>(lengths_ + 4 * i), first = pointer(i);
    return static_cast<int64_t>(tokens < 0) | static_cast<int64_t>(first < 0) |
           static_cast<int64_t>(first > bytes - tokens * item);
  };
  int64_t any = 0;
  for (int64_t i = begin; i < end; ++i) any |= bad(i);
  for (int64_t i = begin; any != 0 && i < end; ++i)
    if (bad(i)) refuse(i);
}

// Checks that each sequence begins where the previous one ends, and the first one at byte 0. An
// overflow also fails this check.
void IndexedDataset::check_order(int64_t begin, int64_t end) const {
  const auto item = static_cast<uint64_t>(item_);
  const auto expected = [=, this](int64_t i) {
    if (i == 0) return uint64_t{0};
    const auto tokens = static_cast<uint64_t>(load<int32_t>(lengths_ + 4 * (i - 1)));
    return static_cast<uint64_t>(pointer(i - 1)) + tokens * item;
  };
  uint64_t any = begin == 0 && end > 0 ? static_cast<uint64_t>(pointer(0)) : 0;
  for (int64_t i = std::max<int64_t>(1, begin); i < end; ++i)
    any |= static_cast<uint64_t>(pointer(i)) ^ expected(i);
  for (int64_t i = begin; any != 0 && i < end; ++i) {
    MG_CHECK(
        static_cast<uint64_t>(pointer(i)) == expected(i),
        "{}.idx: sequence {} begins at byte {} of .bin, and the one before ends at {}: a length "
        "or an offset is wrong, and the file is damaged",
        prefix_, i, pointer(i), expected(i));
  }
}

void IndexedDataset::check_documents(int64_t begin, int64_t end) const {
  const auto bad = [this](int64_t d) {
    return static_cast<int64_t>(document_entry(d) < 0) |
           static_cast<int64_t>(document_entry(d) > document_entry(d + 1));
  };
  int64_t any = 0;
  for (int64_t d = begin; d < end; ++d) any |= bad(d);
  for (int64_t d = begin; any != 0 && d < end; ++d) {
    MG_CHECK(!bad(d),
             "{}.idx: document {} starts at sequence {} and ends at {}: the file is damaged",
             prefix_, d, document_entry(d), document_entry(d + 1));
  }
}

void IndexedDataset::check(ThreadPool& pool) const {
  constexpr int64_t kBlock = int64_t{1} << 20;
  if (checked_.load()) return;
  const int64_t of_sequences = ceil_div(sequences_, kBlock);
  const int64_t of_documents = ceil_div(documents_, kBlock);
  pool.parallel_for(of_sequences + of_documents, [&](int64_t block, int) {
    const bool documents = block >= of_sequences;
    const int64_t begin = (documents ? block - of_sequences : block) * kBlock;
    if (documents) return check_documents(begin, std::min(documents_, begin + kBlock));
    check_sequences(begin, std::min(sequences_, begin + kBlock));
    check_order(begin, std::min(sequences_, begin + kBlock));
  });
  MG_CHECK(identity_of(prefix_) == identity_,
           "{}.idx or .bin was changed while it was being read: try again when they are complete",
           prefix_);
  checked_ = true;
  // Releases memory that was mapped only for this pass.
  ::madvise(const_cast<std::byte*>(idx_.bytes().data()), idx_.bytes().size(), MADV_DONTNEED);
}

int64_t IndexedDataset::token_count() const {
  int64_t tokens = 0;
  for (int64_t i = 0; i < sequences_; ++i) tokens += load<int32_t>(lengths_ + 4 * i);
  return tokens;
}

Lengths IndexedDataset::lengths() const {
  return Lengths({lengths_, static_cast<size_t>(4 * sequences_)});
}

void IndexedDataset::require_type(DType wanted, const std::byte* data) const {
  MG_CHECK(wanted == dtype_, "{}.bin holds {} tokens, not {}", prefix_, name(dtype_), name(wanted));
  MG_CHECK(reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(item_) == 0,
           "{}.bin: a sequence does not start at a multiple of {} bytes", prefix_, item_);
}

int64_t IndexedDataset::pointer(int64_t sequence) const {
  return load<int64_t>(pointers_ + 8 * sequence);
}

int64_t IndexedDataset::document_entry(int64_t entry) const {
  return load<int64_t>(document_entries_ + 8 * entry);
}

int64_t IndexedDataset::length(int64_t sequence) const {
  MG_CHECK(sequence >= 0 && sequence < sequences_, "{}: sequence {} does not exist; there are {}",
           prefix_, sequence, sequences_);
  const int64_t tokens = load<int32_t>(lengths_ + 4 * sequence);
  if (tokens < 0) refuse(sequence);
  return tokens;
}

std::pair<int64_t, int64_t> IndexedDataset::document(int64_t document) const {
  MG_CHECK(document >= 0 && document < documents_, "{}: document {} does not exist; there are {}",
           prefix_, document, documents_);
  check_documents(document, document + 1);
  const std::pair<int64_t, int64_t> range{document_entry(document), document_entry(document + 1)};
  MG_CHECK(range.second <= sequences_,
           "{}.idx: document {} ends at sequence {} of {}: the file is damaged", prefix_, document,
           range.second, sequences_);
  return range;
}

int IndexedDataset::mode(int64_t sequence) const {
  MG_CHECK(sequence >= 0 && sequence < sequences_, "{}: sequence {} does not exist; there are {}",
           prefix_, sequence, sequences_);
  return modes_ == nullptr ? 0 : load<int8_t>(modes_ + sequence);
}

int64_t IndexedDataset::range(int64_t sequence, int64_t offset, int64_t length) const {
  const int64_t tokens = this->length(sequence);
  MG_CHECK(offset >= 0 && length >= 0 && offset <= tokens && length <= tokens - offset,
           "{}: {} tokens are requested from position {} of sequence {}, which has {}", prefix_,
           length, offset, sequence, tokens);
  check_sequences(sequence, sequence + 1);
  return pointer(sequence) + offset * item_;
}

template <class To>
void IndexedDataset::read_as(int64_t sequence, int64_t offset, std::span<To> out) const {
  const int64_t at = range(sequence, offset, static_cast<int64_t>(out.size()));
  if (bin_.mapped()) return copy_as(dtype_, bin_.bytes().data() + at, out, prefix_, sequence);
  std::vector<std::byte> raw(out.size() * static_cast<size_t>(item_));
  bin_.read(at, raw);
  copy_as(dtype_, raw.data(), out, prefix_, sequence);
}

void IndexedDataset::read(int64_t sequence, int64_t offset, std::span<int64_t> out) const {
  read_as(sequence, offset, out);
}

void IndexedDataset::read(int64_t sequence, int64_t offset, std::span<int32_t> out) const {
  read_as(sequence, offset, out);
}

std::vector<int64_t> IndexedDataset::get(int64_t sequence, int64_t offset,
                                         std::optional<int64_t> length) const {
  const int64_t count = length.value_or(this->length(sequence) - offset);
  range(sequence, offset, count);
  std::vector<int64_t> tokens(static_cast<size_t>(count));
  read(sequence, offset, std::span(tokens));
  return tokens;
}

std::span<const std::byte> IndexedDataset::bytes(int64_t sequence) const {
  const int64_t tokens = length(sequence);
  return {bin_.bytes().data() + range(sequence, 0, tokens), static_cast<size_t>(tokens * item_)};
}

}  // namespace megatron::data
