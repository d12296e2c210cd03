// The rows of a data set of packed documents, in the order of its samples.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "corpus/chat/packing.h"

namespace megatron::corpus {

class PackedRows {
 public:
  // lengths: of the documents, in tokens. packing absent: a row for each document, cut to
  // `capacity`. Each epoch has all rows, in an order drawn by seed and epoch; without a seed, in
  // their own. samples: how many rows the run needs; absent: one epoch.
  PackedRows(std::span<const int64_t> lengths, std::optional<Packing> packing, int64_t capacity,
             std::optional<int64_t> seed, std::optional<int64_t> samples);

  // Rows that are packed already.
  PackedRows(std::vector<PackedRow> rows, int64_t capacity, std::optional<int64_t> seed,
             std::optional<int64_t> samples);

  // Makes the order as long as this; earlier samples stay what they are.
  void request(int64_t samples);
  int64_t samples() const { return static_cast<int64_t>(order_.size()); }
  const PackedRow& row(int64_t row) const { return rows_[static_cast<size_t>(row)]; }
  const PackedRow& of_sample(int64_t sample) const { return row(row_of(sample)); }
  int64_t row_of(int64_t sample) const;  // throws Error outside [0, samples())
  int64_t rows() const { return static_cast<int64_t>(rows_.size()); }  // of an epoch
  double filled() const;  // share of an epoch's tokens that are not padding

 private:
  int64_t capacity_;
  std::optional<int64_t> seed_;
  std::vector<PackedRow> rows_;
  std::vector<int32_t> order_;  // row of each sample
};

}  // namespace megatron::corpus
