#include "data/indexed_dataset.h"

#include <unistd.h>

#include <array>
#include <cstring>
#include <limits>

#include "base/error.h"

namespace megatron::data {
namespace {

constexpr std::array<char, 9> kMagic = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};
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
    MG_CHECK(fits, "{}.bin: sequence {} holds {}, which is not a {}-bit token id", prefix, sequence,
             value, 8 * sizeof(To));
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

}  // namespace

bool indexed_dataset_exists(const std::string& prefix) {
  return access((prefix + ".idx").c_str(), R_OK) == 0 &&
         access((prefix + ".bin").c_str(), R_OK) == 0;
}

DType token_type_for_vocabulary(std::optional<int64_t> vocabulary_size) {
  return vocabulary_size && *vocabulary_size < 65500 ? DType::u16 : DType::i32;
}

IndexedDataset::IndexedDataset(std::string prefix)
    : prefix_(std::move(prefix)), idx_(prefix_ + ".idx"), bin_(prefix_ + ".bin") {
  check_header();
  check_entries();
}

void IndexedDataset::check_header() {
  const auto idx = idx_.bytes();
  const int64_t size = static_cast<int64_t>(idx.size());
  MG_CHECK(size >= kHeaderBytes,
           "{}.idx has {} bytes; a token index has at least {}: the file is cut short", prefix_,
           size, kHeaderBytes);
  MG_CHECK(std::memcmp(idx.data(), kMagic.data(), kMagic.size()) == 0,
           "{}.idx is not a token index: it does not start with MMIDIDX", prefix_);
  const auto version = load<uint64_t>(&idx[9]);
  MG_CHECK(version == 1, "{}.idx has version {}; only version 1 is known", prefix_, version);
  const auto code = load<uint8_t>(&idx[17]);
  MG_CHECK(code >= 1 && code <= kTypeOfCode.size(), "{}.idx has element type {}; 1 to 8 are known",
           prefix_, code);
  dtype_ = kTypeOfCode[code - 1];
  item_ = size_of(dtype_);

  const auto sequences = load<uint64_t>(&idx[18]);
  const auto entries = load<uint64_t>(&idx[26]);
  const auto left = static_cast<uint64_t>(size - kHeaderBytes);
  MG_CHECK(sequences <= left / 12 && entries <= (left - 12 * sequences) / 8,
           "{}.idx has {} bytes, too few for {} sequences and {} documents: the file is cut short",
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

void IndexedDataset::check_entries() {
  const int64_t bin_size = static_cast<int64_t>(bin_.bytes().size());
  for (int64_t i = 0; i < sequences_; ++i) {
    const int64_t tokens = load<int32_t>(lengths_ + 4 * i);
    const int64_t begin = pointer(i);
    MG_CHECK(tokens >= 0, "{}.idx: sequence {} has length {}: the file is damaged", prefix_, i,
             tokens);
    MG_CHECK(begin >= 0 && begin <= bin_size && tokens * item_ <= bin_size - begin,
             "{}: sequence {} ({} tokens at byte {}) ends after the {} bytes of {}.bin: one of the "
             "files is cut short or "
             "they do not belong together",
             prefix_, i, tokens, begin, bin_size, prefix_);
    tokens_ += tokens;
  }
  int64_t last = 0;
  for (int64_t d = 0; d <= documents_; ++d) {
    const int64_t entry = document_entry(d);
    MG_CHECK(entry >= last && entry <= sequences_ && (d > 0 || entry == 0),
             "{}.idx: document {} starts at sequence {} of {}, after {}: the file is damaged",
             prefix_, d, entry, sequences_, last);
    last = entry;
  }
  MG_CHECK(last == sequences_,
           "{}.idx: the documents end at sequence {}, but there are {}: the file is damaged",
           prefix_, last, sequences_);
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
  MG_CHECK(sequence >= 0 && sequence < sequences_, "{}: sequence {} of {}", prefix_, sequence,
           sequences_);
  return load<int32_t>(lengths_ + 4 * sequence);
}

std::pair<int64_t, int64_t> IndexedDataset::document(int64_t document) const {
  MG_CHECK(document >= 0 && document < documents_, "{}: document {} of {}", prefix_, document,
           documents_);
  return {document_entry(document), document_entry(document + 1)};
}

int IndexedDataset::mode(int64_t sequence) const {
  MG_CHECK(sequence >= 0 && sequence < sequences_, "{}: sequence {} of {}", prefix_, sequence,
           sequences_);
  return modes_ == nullptr ? 0 : load<int8_t>(modes_ + sequence);
}

const std::byte* IndexedDataset::range(int64_t sequence, int64_t offset, int64_t length) const {
  const int64_t tokens = this->length(sequence);
  MG_CHECK(offset >= 0 && length >= 0 && offset <= tokens && length <= tokens - offset,
           "{}: {} tokens from {} on of sequence {}, which has {}", prefix_, length, offset,
           sequence, tokens);
  return bin_.bytes().data() + pointer(sequence) + offset * item_;
}

void IndexedDataset::read(int64_t sequence, int64_t offset, std::span<int64_t> out) const {
  copy_as(dtype_, range(sequence, offset, static_cast<int64_t>(out.size())), out, prefix_,
          sequence);
}

void IndexedDataset::read(int64_t sequence, int64_t offset, std::span<int32_t> out) const {
  copy_as(dtype_, range(sequence, offset, static_cast<int64_t>(out.size())), out, prefix_,
          sequence);
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
  return {range(sequence, 0, tokens), static_cast<size_t>(tokens * item_)};
}

}  // namespace megatron::data
