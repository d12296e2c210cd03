#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "data/indexed_dataset.h"

namespace megatron::data {
namespace {

uint8_t code_of(DType type) {
  switch (type) {
    case DType::u8: return 1;
    case DType::i8: return 2;
    case DType::i16: return 3;
    case DType::i32: return 4;
    case DType::i64: return 5;
    case DType::u16: return 8;
    default: fail("a token file cannot be written as {}: token ids are integers", name(type));
  }
}

template <class T>
void append(std::string& text, const T& value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <class T>
void append_all(std::string& text, const std::vector<T>& values) {
  text.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

}  // namespace

IndexedDatasetBuilder::IndexedDatasetBuilder(std::string prefix, DType dtype, bool multimodal)
    : prefix_(std::move(prefix)), dtype_(dtype), multimodal_(multimodal), bin_(prefix_ + ".bin") {
  code_of(dtype_);
}

template <class To, class From>
void IndexedDatasetBuilder::convert(std::span<const From> tokens) {
  buffer_.resize(tokens.size() * sizeof(To));
  constexpr int64_t kLow = std::numeric_limits<To>::min(), kHigh = std::numeric_limits<To>::max();
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t token = tokens[i];
    MG_CHECK(token >= kLow && token <= kHigh,
             "{}.bin: token id {} (sequence {}, position {}) does not fit the element type {}, "
             "which holds {} to {}: the "
             "vocabulary size given is too small for these tokens",
             prefix_, token, lengths_.size(), i, name(dtype_), kLow, kHigh);
    const To value = static_cast<To>(token);
    std::memcpy(&buffer_[i * sizeof(To)], &value, sizeof value);
  }
}

template <class T>
void IndexedDatasetBuilder::add_tokens(std::span<const T> tokens, int mode) {
  MG_ASSERT(!finalized_);
  MG_CHECK(tokens.size() <= static_cast<size_t>(std::numeric_limits<int32_t>::max()),
           "{}.bin: a sequence of {} tokens; the format holds at most 2147483647", prefix_,
           tokens.size());
  MG_CHECK(mode >= -128 && mode <= 127 && (multimodal_ || mode == 0), "{}.idx: mode {}; {}",
           prefix_, mode, multimodal_ ? "modes are -128 to 127" : "this file stores no modes");
  switch (dtype_) {
    case DType::u8: convert<uint8_t>(tokens); break;
    case DType::i8: convert<int8_t>(tokens); break;
    case DType::i16: convert<int16_t>(tokens); break;
    case DType::u16: convert<uint16_t>(tokens); break;
    case DType::i32: convert<int32_t>(tokens); break;
    default: convert<int64_t>(tokens); break;
  }
  bin_.write(std::span<const std::byte>(buffer_));
  lengths_.push_back(static_cast<int32_t>(tokens.size()));
  if (multimodal_) modes_.push_back(static_cast<int8_t>(mode));
  tokens_ += static_cast<int64_t>(tokens.size());
}

void IndexedDatasetBuilder::add_item(std::span<const int64_t> tokens, int mode) {
  add_tokens(tokens, mode);
}
void IndexedDatasetBuilder::add_item(std::span<const int32_t> tokens, int mode) {
  add_tokens(tokens, mode);
}

void IndexedDatasetBuilder::end_document() { documents_.push_back(sequence_count()); }

void IndexedDatasetBuilder::add_document(std::span<const int64_t> tokens,
                                         std::span<const int64_t> lengths,
                                         std::span<const int> modes) {
  MG_CHECK(modes.empty() || modes.size() == lengths.size(), "{}: {} modes for {} sequences",
           prefix_, modes.size(), lengths.size());
  size_t begin = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    MG_CHECK(lengths[i] >= 0 && static_cast<size_t>(lengths[i]) <= tokens.size() - begin,
             "{}: sequence {} of a document has {} tokens; {} are left", prefix_, i, lengths[i],
             tokens.size() - begin);
    const size_t count = static_cast<size_t>(lengths[i]);
    add_item(tokens.subspan(begin, count), modes.empty() ? 0 : modes[i]);
    begin += count;
  }
  MG_CHECK(begin == tokens.size(), "{}: a document has {} tokens, its sequences {}", prefix_,
           tokens.size(), begin);
  end_document();
}

void IndexedDatasetBuilder::add_index(const std::string& prefix) {
  MG_ASSERT(!finalized_);
  const IndexedDataset part(prefix);
  MG_CHECK(part.dtype() == dtype_,
           "{} holds {} tokens and cannot be merged into {}, which holds {}: preprocess it again "
           "with the same vocabulary size",
           prefix, name(part.dtype()), prefix_, name(dtype_));
  MG_CHECK(part.sequence_count() == 0 || part.multimodal() == multimodal_,
           "{} {} modes and cannot be merged into {}, which {}", prefix,
           part.multimodal() ? "has" : "has no", prefix_, multimodal_ ? "has" : "has not");
  const int64_t first = sequence_count();
  for (int64_t i = 0; i < part.sequence_count(); ++i) {
    bin_.write(part.bytes(i));
    lengths_.push_back(static_cast<int32_t>(part.length(i)));
    if (multimodal_) modes_.push_back(static_cast<int8_t>(part.mode(i)));
  }
  for (int64_t d = 0; d < part.document_count(); ++d)
    documents_.push_back(first + part.document(d).second);
  tokens_ += part.token_count();
}

std::string IndexedDatasetBuilder::index_text() const {
  std::string text("MMIDIDX\0\0", 9);
  append(text, uint64_t{1});
  append(text, code_of(dtype_));
  append(text, static_cast<uint64_t>(lengths_.size()));
  append(text, static_cast<uint64_t>(documents_.size()));
  append_all(text, lengths_);
  int64_t pointer = 0;
  for (const int32_t length : lengths_) {
    append(text, pointer);
    pointer += length * size_of(dtype_);
  }
  append_all(text, documents_);
  append_all(text, modes_);
  return text;
}

void IndexedDatasetBuilder::finalize() {
  MG_ASSERT(!finalized_);
  MG_CHECK(documents_.back() == sequence_count(), "{}: the last {} sequences belong to no document",
           prefix_, sequence_count() - documents_.back());
  AtomicFile idx(prefix_ + ".idx");
  idx.write(index_text());
  // An older index must never stand beside the new tokens, not even after a crash between the two
  // renames.
  const bool gone = unlink((prefix_ + ".idx").c_str()) == 0 || errno == ENOENT;
  MG_CHECK(gone, "{}.idx cannot be replaced: {}", prefix_, std::strerror(errno));
  bin_.commit();
  idx.commit();
  finalized_ = true;
}

}  // namespace megatron::data
