#include "cli/inspect_dataset.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <map>
#include <vector>

#include "base/divide.h"
#include "base/error.h"
#include "base/log.h"
#include "base/machine_limits.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "base/utf8.h"
#include "data/indexed_dataset.h"

namespace megatron::cli {
namespace {

constexpr int kBarCells = 40;

// Lengths counted exactly up to a million tokens, where nearly all are; longer ones each by value.
class LengthCounts {
 public:
  void add(int64_t length) {
    if (length < kDirect) {
      ++direct_[static_cast<size_t>(length)];
    } else {
      ++longer_[length];
    }
    ++buckets_[static_cast<size_t>(std::bit_width(static_cast<uint64_t>(length)))];
    ++count_;
    total_ += length;
    least_ = std::min(least_, length);
    greatest_ = std::max(greatest_, length);
  }

  int64_t median() const {  // the lower of two
    int64_t before = 0;
    const int64_t rank = (count_ - 1) / 2;
    for (size_t length = 0; length < direct_.size(); ++length) {
      if ((before += direct_[length]) > rank) return static_cast<int64_t>(length);
    }
    for (const auto& [length, number] : longer_) {
      if ((before += number) > rank) return length;
    }
    return greatest_;
  }

  void print() const {
    fmt::print("tokens per document: min {}, median {}, mean {:.1f}, max {}\n", least_, median(),
               static_cast<double>(total_) / static_cast<double>(count_), greatest_);
    const int64_t most = *std::ranges::max_element(buckets_);
    const auto is_used = [](int64_t number) { return number > 0; };
    const auto first = std::ranges::find_if(buckets_, is_used);
    const auto last = std::find_if(buckets_.rbegin(), buckets_.rend(), is_used).base();
    for (auto bucket = first; bucket != last; ++bucket) {
      const auto cells = static_cast<size_t>(ceil_div(*bucket * kBarCells, most));
      fmt::print("  {:>21}  {:>12}  {}\n", range(bucket - buckets_.begin()), *bucket,
                 std::string(cells, '#'));
    }
  }

 private:
  static constexpr int64_t kDirect = 1 << 20;

  static std::string range(int64_t bucket) {
    if (bucket < 2) return std::to_string(bucket);
    return fmt::format("{}-{}", uint64_t{1} << (bucket - 1), (uint64_t{1} << bucket) - 1);
  }

  std::vector<int64_t> direct_ = std::vector<int64_t>(kDirect);
  std::map<int64_t, int64_t> longer_;
  std::array<int64_t, 65> buckets_{};
  int64_t count_ = 0, total_ = 0, greatest_ = 0;
  int64_t least_ = std::numeric_limits<int64_t>::max();
};

// Prints the beginning of a document, at most `characters` characters.
void print_document(const data::IndexedDataset& set, int64_t document,
                    const DatasetInspection& inspection) {
  const auto [begin, end] = set.document(document);
  std::vector<int32_t> ids;
  int64_t tokens = 0;
  const int64_t enough =
      inspection.characters == 0 ? std::numeric_limits<int64_t>::max() : 8 * inspection.characters;
  for (int64_t sequence = begin; sequence < end; ++sequence) {
    const int64_t length = set.length(sequence);
    tokens += length;
    const int64_t take = std::min(length, enough - static_cast<int64_t>(ids.size()));
    if (take <= 0) continue;
    const size_t at = ids.size();
    ids.resize(at + static_cast<size_t>(take));
    set.read(sequence, 0, std::span<int32_t>(ids).subspan(at));
  }
  const std::string text = inspection.tokenizer->decode(ids, false);
  const std::string_view shown = std::string_view(text).substr(
      0, inspection.characters == 0 ? text.size() : character_offset(text, inspection.characters));
  fmt::print("--- document {}: {} {}, {} tokens\n{}{}\n", document, end - begin,
             end - begin == 1 ? "sequence" : "sequences", tokens, shown,
             shown.size() < text.size() ? " ..." : "");
  const int64_t known = inspection.tokenizer->vocabulary_size();
  const auto strange = std::ranges::find_if(ids, [=](int32_t id) { return id < 0 || id >= known; });
  if (strange != ids.end()) {
    log::warning(
        "document {} contains token id {}, but the tokenizer has {} tokens: it is not the one "
        "the data was made with",
        document, *strange, known);
  }
}

void print_summary(const data::IndexedDataset& set) {
  LengthCounts lengths;
  int64_t tokens = 0;
  for (int64_t d = 0; d < set.document_count(); ++d) {
    const auto [begin, end] = set.document(d);
    int64_t length = 0;
    for (int64_t sequence = begin; sequence < end; ++sequence) length += set.length(sequence);
    tokens += length;
    lengths.add(length);
  }
  fmt::print("{}.bin/.idx: {} documents, {} sequences, {} tokens of type {} ({}){}\n", set.path(),
             set.document_count(), set.sequence_count(), tokens, name(set.dtype()),
             format_bytes(static_cast<double>(tokens * size_of(set.dtype()))),
             set.multimodal() ? ", with modes" : "");
  if (set.document_count() > 0) lengths.print();
}

// Throws Error for a value that is no token id.
void verify_tokens(const data::IndexedDataset& set, const DatasetInspection& inspection) {
  const auto range = set.token_range();
  const std::string ids =
      range ? fmt::format("token ids {} to {}", range->smallest, range->largest) : "no tokens";
  MG_CHECK(!range || range->smallest >= 0, "{}.bin contains token id {}, but ids start at 0",
           set.path(), range->smallest);
  if (const auto& vocabulary = inspection.vocabulary) {
    MG_CHECK(!range || range->largest < *vocabulary,
             "{}.bin contains token id {}, but the vocabulary has {} tokens (ids 0 to {})",
             set.path(), range->largest, *vocabulary, *vocabulary - 1);
    fmt::print("verified: index and {} bytes of tokens read; {}, within the vocabulary of {}\n",
               set.bin_bytes(), ids, *vocabulary);
  } else {
    fmt::print(
        "verified: index and {} bytes of tokens read; {} (not checked against a vocabulary: give "
        "--tokenizer-model or --vocab-size)\n",
        set.bin_bytes(), ids);
  }
}

}  // namespace

bool inspect_dataset(const std::string& prefix, const DatasetInspection& inspection) {
  try {
    const data::IndexedDataset set(prefix);
    ThreadPool pool(available_processors());
    set.check(pool);
    print_summary(set);
    if (inspection.verify) verify_tokens(set, inspection);
    if (inspection.tokenizer == nullptr) return true;
    for (int64_t d = 0; d < std::min(inspection.documents, set.document_count()); ++d)
      print_document(set, d, inspection);
    return true;
  } catch (const Error& error) {
    if (!inspection.verify) throw;
    fmt::print("{}: damaged\n    {}\n", prefix, error.what());
    return false;
  }
}

}  // namespace megatron::cli
