// Token files of Megatron-LM: <prefix>.bin holds the token ids of all sequences consecutively,
// <prefix>.idx the location of each sequence and each document. All numbers are little-endian.
//
//   .idx  offset            type     content
//         0                 9 bytes  "MMIDIDX\0\0"
//         9                 u64      version, 1
//         17                u8       element type: 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 6 f64, 7 f32,
//                                    8 u16
//         18, 26            u64      number of sequences S; number of documents + 1, D
//         34                i32[S]   tokens of each sequence
//         34 + 4S           i64[S]   byte offset of each sequence in .bin
//         34 + 12S          i64[D]   first sequence of each document; the last entry is S
//         34 + 12S + 8D     i8[S]    modes, only in multimodal files
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/files.h"
#include "data/bin_file.h"
#include "data/spill.h"
#include "data/token_source.h"

namespace megatron::data {

// First bytes of an .idx file.
inline constexpr std::string_view kIndexMagic("MMIDIDX\0\0", 9);

// Prefix of a pair of files, given the prefix or the name of one of the two.
std::string indexed_dataset_prefix(const std::string& path);

// Throws Error, naming the flag of the prefix, unless both files of `prefix` may be written: see
// base/command_output.h. With `overwrite` a pair of token files may be replaced; a .bin is
// recognised by the .idx next to it, or as the leftover of a killed builder.
void check_dataset_output(const std::string& prefix, bool overwrite,
                          const std::vector<std::string>& inputs);

// True if both files of `prefix` exist.
bool indexed_dataset_exists(const std::string& prefix);

// Element type that preprocessing writes: u16 below 65500 words, i32 otherwise or if the size is
// unknown.
DType token_type_for_vocabulary(std::optional<int64_t> vocabulary_size);

// Smallest and largest token id.
struct TokenRange {
  int64_t smallest = 0, largest = 0;
  bool operator==(const TokenRange&) const = default;
};

struct IndexedDatasetOptions {
  bool map_tokens = true;  // false: .bin is read piece by piece, never mapped (--no-mmap-bin-files)
};

// A pair of token files; .idx is mapped. Opening takes constant time for any number of sequences:
// it checks the header, both sizes and the ends of the tables. check() checks every length, offset
// and document entry: sequences must be contiguous in .bin, as every writer of the format writes
// them, and fill it. Each access checks again the entries it uses. All throw Error naming the file
// and the entry. Thread-safe.
class IndexedDataset : public TokenSource {
 public:
  explicit IndexedDataset(std::string prefix, IndexedDatasetOptions options = {});

  const std::string& path() const override { return prefix_; }
  int64_t sequence_count() const override { return sequences_; }
  int64_t length(int64_t sequence) const override;
  void read(int64_t sequence, int64_t offset, std::span<int64_t> out) const override;
  void read(int64_t sequence, int64_t offset, std::span<int32_t> out) const;
  Lengths lengths() const override;
  std::span<const std::byte> index_bytes() const override { return idx_.bytes(); }
  Json identity() const override { return identity_; }
  void check(ThreadPool& pool) const override;  // once; later calls return immediately

  DType dtype() const { return dtype_; }
  int64_t token_count() const;  // sum of all lengths
  int64_t bin_bytes() const { return bin_.size(); }
  int64_t document_count() const { return documents_; }
  // Sequences [first, second) of a document; both are equal if it is empty.
  std::pair<int64_t, int64_t> document(int64_t document) const;
  bool multimodal() const { return modes_ != nullptr; }
  int mode(int64_t sequence) const;  // 0 if the file has no modes

  // Tokens [offset, offset + length) of a sequence; without a length, to its end.
  std::vector<int64_t> get(int64_t sequence, int64_t offset = 0,
                           std::optional<int64_t> length = {}) const;
  // Smallest and largest token id over all sequences; reads the whole .bin, at memory speed for
  // integer types. None without tokens. Throws Error naming the sequence if a value is not an
  // integer.
  std::optional<TokenRange> token_range() const;
  // The sequence's bytes in the file, which must be mapped.
  std::span<const std::byte> bytes(int64_t sequence) const;
  // The same, typed. Throws Error if T is not the element type or the sequence is not aligned to
  // its size.
  template <class T>
  std::span<const T> tokens(int64_t sequence) const {
    const auto raw = bytes(sequence);
    require_type(DTypeOf<T>::value, raw.data());
    return {reinterpret_cast<const T*>(raw.data()), raw.size() / sizeof(T)};
  }

 private:
  void check_header();
  void check_ends() const;
  void check_sequences(int64_t begin, int64_t end) const;
  void check_order(int64_t begin, int64_t end) const;
  void check_documents(int64_t begin, int64_t end) const;
  [[noreturn]] void refuse(int64_t sequence) const;
  void require_type(DType wanted, const std::byte* data) const;
  // Byte offset in .bin of tokens [offset, offset + length) of a sequence.
  int64_t range(int64_t sequence, int64_t offset, int64_t length) const;
  int64_t pointer(int64_t sequence) const;
  int64_t document_entry(int64_t entry) const;
  template <class To>
  void read_as(int64_t sequence, int64_t offset, std::span<To> out) const;

  std::string prefix_;
  Json identity_;
  MappedFile idx_;
  BinFile bin_;
  DType dtype_ = DType::i32;
  int64_t sequences_ = 0, documents_ = 0, item_ = 0;
  const std::byte* lengths_ = nullptr;  // start of the four tables inside idx_, unaligned
  const std::byte* pointers_ = nullptr;
  const std::byte* document_entries_ = nullptr;
  const std::byte* modes_ = nullptr;
  mutable std::atomic<bool> checked_{false};
};

// Writes a pair of token files. Nothing is visible under their names before finalize(), which
// publishes first .bin and then .idx atomically; a builder that is destroyed earlier leaves no
// files. Memory does not grow with the number of sequences and documents.
class IndexedDatasetBuilder {
 public:
  // dtype: an integer type. A multimodal file stores one mode per sequence.
  IndexedDatasetBuilder(std::string prefix, DType dtype, bool multimodal = false);

  // Appends one sequence. Throws Error for a value outside the range of the element type.
  void add_item(std::span<const int64_t> tokens, int mode = 0);
  void add_item(std::span<const int32_t> tokens, int mode = 0);
  void end_document();
  // Appends a document of several sequences with consecutive tokens. modes: empty or one per
  // sequence.
  void add_document(std::span<const int64_t> tokens, std::span<const int64_t> lengths,
                    std::span<const int> modes = {});
  // Appends many documents: their tokens in the file's format, the number of tokens of each
  // sequence, and the number of sequences of each document. Throws Error if the numbers do not add
  // up. Not for multimodal files.
  void add_documents(std::span<const std::byte> tokens, std::span<const int32_t> lengths,
                     std::span<const int32_t> sequences);
  void add_documents(const SpilledBytes& tokens, const SpilledList<int32_t>& lengths,
                     const SpilledList<int32_t>& sequences);
  // Appends all sequences and documents of another pair of the same element type (merge).
  void add_index(const std::string& prefix);
  void finalize();

  DType dtype() const { return dtype_; }
  std::string folder() const;  // of both files
  int64_t sequence_count() const { return lengths_.size(); }
  int64_t document_count() const { return documents_.size() - 1; }
  int64_t token_count() const { return tokens_; }

 private:
  template <class T>
  void add_tokens(std::span<const T> tokens, int mode);
  template <class To, class From>
  void convert(std::span<const From> tokens);
  void append_lengths(std::span<const int32_t> lengths);
  void append_documents(std::span<const int32_t> sequences);
  void check_closed() const;
  void add_sequences_of(const IndexedDataset& part);
  void write_index(AtomicFile& idx) const;

  std::string prefix_;
  DType dtype_;
  bool multimodal_, finalized_ = false;
  AtomicFile bin_;  // creates the folder, into which the lists may spill
  SpilledList<int32_t> lengths_;
  SpilledList<int64_t> documents_;  // table of the file: 0, then the end of each document
  SpilledList<int8_t> modes_;
  std::vector<std::byte> buffer_;
  int64_t tokens_ = 0, closed_ = 0;  // closed_: sequences that belong to a document
};

}  // namespace megatron::data
