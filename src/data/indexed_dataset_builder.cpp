#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>

#include "base/command_output.h"
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

// True if a builder of this prefix was killed, perhaps between the renames of its two files: its
// temporary file (AtomicFile: FILE.PROCESS.NUMBER.tmp) is next to them.
bool was_interrupted(const std::string& prefix) {
  const std::string base = std::filesystem::path(prefix).filename().string();
  std::error_code error;
  std::filesystem::directory_iterator at(folder_of(prefix), error);
  for (; !error && at != std::filesystem::directory_iterator(); at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.ends_with(".tmp") &&
        (name.starts_with(base + ".idx.") || name.starts_with(base + ".bin.")))
      return true;
  }
  return false;
}

}  // namespace

void check_dataset_output(const std::string& prefix, bool overwrite,
                          const std::vector<std::string>& inputs) {
  const std::string flag = "--output-prefix";
  const std::string bin = prefix + ".bin", idx = prefix + ".idx";
  const FileKind index = {"a token index", [](std::string_view beginning) {
                            return beginning.starts_with(kIndexMagic);
                          }};
  check_output({idx, flag, index, overwrite}, inputs);
  std::error_code error;
  const bool has_index =
      (std::filesystem::file_size(idx, error) > 0 && !error) || was_interrupted(prefix);
  const FileKind tokens = {
      "a token file with its .idx next to it",
      has_index ? [](std::string_view) { return true; } : [](std::string_view) { return false; }};
  check_output({bin, flag, tokens, overwrite}, inputs);
}

IndexedDatasetBuilder::IndexedDatasetBuilder(std::string prefix, DType dtype, bool multimodal)
    : prefix_(std::move(prefix)),
      dtype_(dtype),
      multimodal_(multimodal),
      bin_(prefix_ + ".bin"),
      lengths_(folder_of(prefix_)),
      documents_(folder_of(prefix_)),
      modes_(folder_of(prefix_)) {
  code_of(dtype_);
  documents_.push_back(0);
}

std::string IndexedDatasetBuilder::folder() const { return folder_of(prefix_); }

template <class To, class From>
void IndexedDatasetBuilder::convert(std::span<const From> tokens) {
  buffer_.resize(tokens.size() * sizeof(To));
  constexpr int64_t kLow = std::numeric_limits<To>::min(), kHigh = std::numeric_limits<To>::max();
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t token = tokens[i];
    MG_CHECK(token >= kLow && token <= kHigh,
             "{}.bin: token id {} (sequence {}, position {}) does not fit the element type {}, "
             "whose range is {} to {}: the given vocabulary size is too small for these tokens",
             prefix_, token, lengths_.size(), i, name(dtype_), kLow, kHigh);
    const To value = static_cast<To>(token);
    std::memcpy(&buffer_[i * sizeof(To)], &value, sizeof value);
  }
}

template <class T>
void IndexedDatasetBuilder::add_tokens(std::span<const T> tokens, int mode) {
  MG_ASSERT(!finalized_);
  MG_CHECK(tokens.size() <= static_cast<size_t>(std::numeric_limits<int32_t>::max()),
           "{}.bin: a sequence has {} tokens; the format allows at most 2147483647", prefix_,
           tokens.size());
  MG_CHECK(mode >= -128 && mode <= 127 && (multimodal_ || mode == 0), "{}.idx: mode {}; {}",
           prefix_, mode, multimodal_ ? "modes are -128 to 127" : "this file does not store modes");
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

void IndexedDatasetBuilder::end_document() {
  closed_ = sequence_count();
  documents_.push_back(closed_);
}

void IndexedDatasetBuilder::add_document(std::span<const int64_t> tokens,
                                         std::span<const int64_t> lengths,
                                         std::span<const int> modes) {
  MG_CHECK(modes.empty() || modes.size() == lengths.size(), "{}: {} modes for {} sequences",
           prefix_, modes.size(), lengths.size());
  size_t begin = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    MG_CHECK(
        lengths[i] >= 0 && static_cast<size_t>(lengths[i]) <= tokens.size() - begin,
        "{}: sequence {} of a document has {} tokens, but only {} tokens are left in the document",
        prefix_, i, lengths[i], tokens.size() - begin);
    const size_t count = static_cast<size_t>(lengths[i]);
    add_item(tokens.subspan(begin, count), modes.empty() ? 0 : modes[i]);
    begin += count;
  }
  MG_CHECK(begin == tokens.size(), "{}: a document has {} tokens, but its sequences have {}",
           prefix_, tokens.size(), begin);
  end_document();
}

void IndexedDatasetBuilder::add_index(const std::string& prefix) {
  MG_ASSERT(!finalized_);
  const IndexedDataset part(prefix);
  MG_CHECK(part.dtype() == dtype_,
           "{} has {} tokens and cannot be merged into {}, which has {}: preprocess it again "
           "with the same vocabulary size",
           prefix, name(part.dtype()), prefix_, name(dtype_));
  MG_CHECK(part.sequence_count() == 0 || part.multimodal() == multimodal_,
           "{} {} modes and cannot be merged into {}, which {}", prefix,
           part.multimodal() ? "has" : "has no", prefix_, multimodal_ ? "has" : "has not");
  const int64_t first = sequence_count();
  check_closed();
  add_sequences_of(part);
  for (int64_t d = 0; d < part.document_count(); ++d)
    documents_.push_back(first + part.document(d).second);
  closed_ = sequence_count();
}

// Consecutive sequences in the file are copied together.
void IndexedDatasetBuilder::add_sequences_of(const IndexedDataset& part) {
  std::span<const std::byte> run;
  for (int64_t i = 0; i < part.sequence_count(); ++i) {
    const std::span<const std::byte> bytes = part.bytes(i);
    if (bytes.data() != run.data() + run.size()) {
      bin_.write(run);
      run = bytes;
    } else {
      run = {run.data(), run.size() + bytes.size()};
    }
    lengths_.push_back(static_cast<int32_t>(part.length(i)));
    tokens_ += part.length(i);
    if (multimodal_) modes_.push_back(static_cast<int8_t>(part.mode(i)));
  }
  bin_.write(run);
}

void IndexedDatasetBuilder::add_documents(std::span<const std::byte> tokens,
                                          std::span<const int32_t> lengths,
                                          std::span<const int32_t> sequences) {
  MG_ASSERT(!finalized_ && !multimodal_);
  bin_.write(tokens);
  append_lengths(lengths);
  append_documents(sequences);
  check_closed();
}

void IndexedDatasetBuilder::add_documents(const SpilledBytes& tokens,
                                          const SpilledList<int32_t>& lengths,
                                          const SpilledList<int32_t>& sequences) {
  MG_ASSERT(!finalized_ && !multimodal_);
  tokens.for_each([this](std::span<const std::byte> part) { bin_.write(part); });
  lengths.for_each([this](std::span<const int32_t> part) { append_lengths(part); });
  sequences.for_each([this](std::span<const int32_t> part) { append_documents(part); });
  check_closed();
}

void IndexedDatasetBuilder::append_lengths(std::span<const int32_t> lengths) {
  for (const int32_t length : lengths) {
    MG_CHECK(length >= 0, "{}: a sequence has {} tokens; the number cannot be negative", prefix_,
             length);
    tokens_ += length;
  }
  lengths_.append(lengths);
}

void IndexedDatasetBuilder::append_documents(std::span<const int32_t> sequences) {
  for (const int32_t number : sequences) {
    MG_CHECK(number >= 0, "{}: a document has {} sequences; the number cannot be negative", prefix_,
             number);
    closed_ += number;
    documents_.push_back(closed_);
  }
}

void IndexedDatasetBuilder::check_closed() const {
  MG_CHECK(closed_ == sequence_count(), "{}: there are {} sequences, but the documents have {}",
           prefix_, sequence_count(), closed_);
  MG_CHECK(bin_.size() == tokens_ * size_of(dtype_),
           "{}: {} tokens of type {} do not match the {} bytes of the .bin file", prefix_, tokens_,
           name(dtype_), bin_.size());
}

void IndexedDatasetBuilder::write_index(AtomicFile& idx) const {
  std::string header(kIndexMagic);
  append(header, uint64_t{1});
  append(header, code_of(dtype_));
  append(header, static_cast<uint64_t>(lengths_.size()));
  append(header, static_cast<uint64_t>(documents_.size()));
  idx.write(header);
  lengths_.for_each([&](std::span<const int32_t> part) { idx.write(std::as_bytes(part)); });
  int64_t pointer = 0;
  std::vector<int64_t> pointers;
  lengths_.for_each([&](std::span<const int32_t> part) {
    pointers.clear();
    for (const int32_t length : part) {
      pointers.push_back(pointer);
      pointer += length * size_of(dtype_);
    }
    idx.write(std::as_bytes(std::span<const int64_t>(pointers)));
  });
  documents_.for_each([&](std::span<const int64_t> part) { idx.write(std::as_bytes(part)); });
  modes_.for_each([&](std::span<const int8_t> part) { idx.write(std::as_bytes(part)); });
}

void IndexedDatasetBuilder::finalize() {
  MG_ASSERT(!finalized_);
  MG_CHECK(closed_ == sequence_count(), "{}: the last {} sequences belong to no document", prefix_,
           sequence_count() - closed_);
  AtomicFile idx(prefix_ + ".idx");
  write_index(idx);
  // All steps that can fail for lack of space come before any name changes.
  bin_.sync();
  idx.sync();
  // An older index must never exist next to the new tokens, not even after a crash between the two
  // renames.
  const bool gone = unlink((prefix_ + ".idx").c_str()) == 0 || errno == ENOENT;
  MG_CHECK(gone, "{}.idx cannot be replaced: {}", prefix_, std::strerror(errno));
  bin_.commit();
  idx.commit();
  finalized_ = true;
}

}  // namespace megatron::data
