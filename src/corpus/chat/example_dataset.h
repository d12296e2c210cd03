// A data set of packed rows of examples, whose documents do not attend to each other.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "corpus/chat/packed_rows.h"
#include "data/dataset.h"

namespace megatron::corpus {

// Positions begin at 0 in each document. Padding tokens carry no loss; each is a document of its
// own, so that attention has nothing to compute for it.
class ExampleDataset : public data::Dataset {
 public:
  int64_t size() const final { return rows_.samples(); }
  void read(int64_t k, data::Sample& sample) const final { read_row(rows_.row_of(k), sample); }
  void read_row(int64_t row, data::Sample& sample) const;
  void read_filler(data::Sample& sample) const final;
  const PackedRows& rows() const { return rows_; }
  // Length of a row, "128 tokens", and the share of an epoch's tokens that are not padding.
  virtual std::string length_text() const { return fmt::format("{} tokens", length_); }
  virtual double filled() const { return rows_.filled(); }
  void request(int64_t samples) { rows_.request(samples); }

 protected:
  // examples: which of the store's belong to the set; a part of a row is numbered among them. The
  // other arguments are those of PackedRows. Store::length(example): its tokens.
  template <class Store>
  ExampleDataset(const Store& store, std::vector<int64_t> examples, std::optional<Packing> packing,
                 int64_t length, int32_t padding, std::optional<int64_t> seed,
                 std::optional<int64_t> samples)
      : examples_(std::move(examples)),
        rows_(lengths_of(store, examples_), packing, length, seed, samples),
        length_(length),
        padding_(padding) {}
  // The same with rows of any kind. length: of a row, in tokens.
  ExampleDataset(std::vector<int64_t> examples, PackedRows rows, int64_t length, int32_t padding)
      : examples_(std::move(examples)),
        rows_(std::move(rows)),
        length_(length),
        padding_(padding) {}

  int64_t example_of(const PackedPart& part) const {
    return examples_[static_cast<size_t>(part.document)];
  }
  // Writes a document's tokens, which are from this source, to the sample from index `at` on, and
  // advances `at` past them.
  static void place(std::span<const int32_t> ids, size_t source, size_t& at, data::Sample& sample);
  // Fills a sample that is padding so far.
  virtual void fill(const PackedRow& row, data::Sample& sample) const = 0;

 private:
  template <class Store>
  static std::vector<int64_t> lengths_of(const Store& store, const std::vector<int64_t>& examples) {
    MG_ASSERT(!examples.empty());
    std::vector<int64_t> lengths;
    for (const int64_t example : examples) lengths.push_back(store.length(example));
    return lengths;
  }

  std::vector<int64_t> examples_;
  PackedRows rows_;
  int64_t length_;
  int32_t padding_;
};

}  // namespace megatron::corpus
