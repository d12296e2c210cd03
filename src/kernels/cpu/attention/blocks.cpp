#include "kernels/cpu/attention/blocks.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "kernels/cpu/products/bf16_products.h"

namespace megatron::kernels::cpu {

namespace {

constexpr int32_t kNever = std::numeric_limits<int32_t>::max();

}  // namespace

int64_t cut_pieces(std::byte* begin, std::span<const ScratchPiece> pieces) {
  int64_t bytes = 0;
  for (const ScratchPiece& piece : pieces) {
    *piece.place = begin == nullptr ? nullptr : reinterpret_cast<uint32_t*>(begin + bytes);
    bytes += round_up(piece.words * 4, 64);
  }
  return bytes;
}

AttentionSizes::AttentionSizes(const Tensor& q, const Tensor& k, const Tensor& v, int64_t of_keys,
                               bool is_causal, const DropoutArgs::Mask& mask)
    : batch(q.size(0)),
      queries(q.size(1)),
      keys(of_keys),
      kv_heads(k.size(2)),
      group(q.size(2) / k.size(2)),
      kind(word_kind(q.dtype(), bf16_products())),
      key(q.size(3), kind),
      value(v.size(3), kind),
      padded_keys(round_up(keys, kPanel)),
      causal(is_causal),
      dropout(mask) {}

int32_t AttentionSizes::position(int64_t sample, int64_t t) const {
  return q_positions.defined() ? q_positions.data<int32_t>()[sample * queries + t]
                               : static_cast<int32_t>(t);
}

int32_t AttentionSizes::limit(int64_t sample, int64_t t) const {
  const auto last = static_cast<int32_t>(highest_seen(position(sample, t), causal, window));
  if (!window_end.defined()) return last;
  return std::min(last, window_end.data<int32_t>()[sample * queries + t]);
}

int32_t AttentionSizes::key_begin(int64_t sample, int64_t t) const {
  const auto begin = static_cast<int32_t>(lowest_seen(position(sample, t), window, chunk));
  if (!window_start.defined()) return begin;
  return std::max(begin, window_start.data<int32_t>()[sample * queries + t]);
}

int64_t KeyPlaces::bytes(const AttentionSizes& sizes) {
  return sizes.batch * (sizes.padded_keys + 2 * (sizes.padded_keys / kPanel) + 2) * 4;
}

KeyPlaces::KeyPlaces(const AttentionSizes& sizes, std::shared_ptr<Storage> memory)
    : storage_(std::move(memory)), padded_keys_(sizes.padded_keys) {
  const int64_t panels = padded_keys_ / kPanel;
  key_ = reinterpret_cast<int32_t*>(storage_->data());
  lowest_ = key_ + sizes.batch * padded_keys_;
  highest_ = lowest_ + sizes.batch * panels;
  begin_ = highest_ + sizes.batch * panels;
  limit_ = begin_ + sizes.batch;
  for (int64_t b = 0; b < sizes.batch; ++b) {
    begin_[b] = kNever;
    limit_[b] = std::numeric_limits<int32_t>::min();
    for (int64_t t = 0; t < sizes.queries; ++t) {
      begin_[b] = std::min(begin_[b], sizes.key_begin(b, t));
      limit_[b] = std::max(limit_[b], sizes.limit(b, t));
    }
    int32_t* key = key_ + b * padded_keys_;
    for (int64_t j = 0; j < padded_keys_; ++j) {
      if (j >= sizes.keys) {
        key[j] = kNever;
      } else {
        key[j] = sizes.k_positions.defined() ? sizes.k_positions.data<int32_t>()[b * sizes.keys + j]
                                             : static_cast<int32_t>(j);
      }
    }
    for (int64_t panel = 0; panel < panels; ++panel) {
      const auto [low, high] =
          std::minmax_element(key + panel * kPanel, key + (panel + 1) * kPanel);
      lowest_[b * panels + panel] = *low;
      highest_[b * panels + panel] = *high;
    }
  }
}

KeyRange KeyPlaces::within(int64_t sample, int64_t block, int32_t begin, int32_t limit) const {
  const int64_t panel = (sample * padded_keys_ + block * kKeyColumns) / kPanel;
  const int32_t *lowest = lowest_ + panel, *highest = highest_ + panel;
  int64_t first = 0, end = std::min(kKeyColumns, padded_keys_ - block * kKeyColumns) / kPanel;
  while (end > first && lowest[end - 1] > limit) --end;
  while (first < end && highest[first] < begin) ++first;
  if (first == end)
    return {.first = 0, .count = 0, .lowest = kNever, .highest = kNever, .reachable = 0};
  const int32_t* key = keys(sample, block) + first * kPanel;
  int64_t last = (end - first) * kPanel;
  while (last > 0 && (key[last - 1] > limit || key[last - 1] < begin)) --last;
  return {.first = first * kPanel,
          .count = (end - first) * kPanel,
          .lowest = *std::min_element(lowest + first, lowest + end),
          .highest = *std::max_element(highest + first, highest + end),
          .reachable = last};
}

KeyRange KeyPlaces::reachable(int64_t sample, int64_t block) const {
  return within(sample, block, begin_[sample], limit_[sample]);
}

RowBlock::RowBlock(const AttentionSizes& sizes, int64_t sample_index, int64_t head, int64_t block)
    : sample(sample_index), key_head(head), begin(block * kQueryRows) {
  count = std::min(kQueryRows, sizes.queries * sizes.group - begin);
  rows = round_up(count, 2);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t t = (begin + std::min(i, count - 1)) / sizes.group;
    position[i] = sizes.position(sample, t);
    limit[i] = sizes.limit(sample, t);
    key_begin[i] = sizes.key_begin(sample, t);
  }
  const auto [low, high] = std::minmax_element(limit, limit + count);
  lowest_limit = *low;
  highest_limit = *high;
  const auto [first, last] = std::minmax_element(key_begin, key_begin + count);
  lowest_begin = *first;
  highest_begin = *last;
}

RowBlock::KeyBlocks RowBlock::key_blocks(const AttentionSizes& sizes) const {
  if (sizes.k_positions.defined()) return {0, sizes.key_blocks()};
  return {std::max(lowest_begin, 0) / kKeyColumns,
          highest_limit < 0 ? 0 : std::min(sizes.key_blocks(), highest_limit / kKeyColumns + 1)};
}

TilePlace RowBlock::tile(const KeyPlaces& places, int64_t block) const {
  const KeyRange range = places.within(sample, block, lowest_begin, highest_limit);
  const bool begun = range.lowest >= highest_begin;
  return {.rows = rows,
          .first = range.first,
          .keys = range.count,
          .key_begin = begun ? nullptr : key_begin,
          .limit = limit,
          .key = places.keys(sample, block) + range.first,
          .all_seen = begun && range.highest <= lowest_limit};
}

TileDropout RowBlock::draw(const AttentionSizes& sizes, const TilePlace& place,
                           uint32_t* words) const {
  const DropoutArgs::Mask& mask = sizes.dropout;
  if (mask.p == 0) return {};
  const auto sample_id = static_cast<uint64_t>(mask.rows.sample_ids.data<int64_t>()[sample]);
  for (int64_t i = 0; i < count; ++i) {
    const auto number = static_cast<uint64_t>(mask.first_head + head(sizes, i));
    const uint64_t key = philox_key(mask.seed, mix_stream(mask.stream, number));
    random_row(place.key, place.keys, static_cast<uint32_t>(position[i]), sample_id, key,
               words + i * kKeyColumns);
  }
  std::fill(words + count * kKeyColumns, words + rows * kKeyColumns, 0u);
  return {.words = words,
          .threshold = static_cast<uint32_t>(std::ceil(static_cast<double>(mask.p) * 0x1p32)),
          .scale = 1.0f / (1.0f - mask.p)};
}

int64_t RowBlock::statistics_index(const AttentionSizes& sizes, int64_t i) const {
  return (sample * sizes.kv_heads * sizes.group + head(sizes, i)) * sizes.queries +
         (begin + i) / sizes.group;
}

void require_attention_type(const char* kernel, DType type) {
  MG_CHECK(type == DType::f32 || type == DType::bf16,
           "{} on the cpu device supports f32 and bf16, not {}; use the reference device "
           "(--device reference)",
           kernel, name(type));
}

}  // namespace megatron::kernels::cpu
