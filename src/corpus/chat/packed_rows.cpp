#include "corpus/chat/packed_rows.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "data/random_state.h"

namespace megatron::corpus {

PackedRows::PackedRows(std::span<const int64_t> lengths, std::optional<Packing> packing,
                       int64_t capacity, std::optional<int64_t> seed,
                       std::optional<int64_t> samples)
    : capacity_(capacity), seed_(seed) {
  if (packing) {
    rows_ = pack(lengths, capacity, *packing);
  } else {
    for (int64_t i = 0; i < std::ssize(lengths); ++i)
      rows_.push_back({{i, 0, std::min(lengths[static_cast<size_t>(i)], capacity)}});
  }
  request(samples.value_or(rows()));
}

PackedRows::PackedRows(std::vector<PackedRow> rows, int64_t capacity, std::optional<int64_t> seed,
                       std::optional<int64_t> samples)
    : capacity_(capacity), seed_(seed), rows_(std::move(rows)) {
  request(samples.value_or(this->rows()));
}

void PackedRows::request(int64_t samples) {
  order_.clear();
  for (int64_t epoch = 0; std::ssize(order_) < samples; ++epoch) {
    std::vector<int32_t> order(rows_.size());
    std::iota(order.begin(), order.end(), 0);
    if (seed_) data::RandomState((*seed_ + epoch) & 0xFFFFFFFF).shuffle(std::span(order));
    order_.insert(order_.end(), order.begin(), order.end());
  }
  order_.resize(static_cast<size_t>(samples));
}

int64_t PackedRows::row_of(int64_t sample) const {
  MG_CHECK(sample >= 0 && sample < samples(), "sample {} is outside [0, {})", sample, samples());
  return order_[static_cast<size_t>(sample)];
}

double PackedRows::filled() const {
  double tokens = 0;
  for (const PackedRow& row : rows_)
    for (const PackedPart& part : row) tokens += static_cast<double>(part.length);
  return tokens / static_cast<double>(rows() * capacity_);
}

}  // namespace megatron::corpus
