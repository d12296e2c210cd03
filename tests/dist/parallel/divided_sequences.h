// The tokens of sequences that context-parallel ranks divide, as tensors of a rank.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "dist/ranks.h"
#include "parallel/context_attention.h"

namespace megatron::parallel {

using Indices = std::vector<int32_t>;

// First and last token of each token's document, [sequences, length].
struct Documents {
  Indices starts, ends;

  void add(int64_t begin, int64_t end) {
    starts.insert(starts.end(), static_cast<size_t>(end - begin), static_cast<int32_t>(begin));
    ends.insert(ends.end(), static_cast<size_t>(end - begin), static_cast<int32_t>(end - 1));
  }
};

inline Tensor integers(Runtime& runtime, const Indices& values) {
  Tensor t = testing::make(runtime, {static_cast<int64_t>(values.size())}, DType::i32);
  copy_from(t, std::span<const int32_t>(values));
  return t;
}

// For each row of the ranks' tokens the row in whole sequences, and the reverse.
inline void set_rows(ExchangedTokens& to, Runtime& runtime, const std::vector<int64_t>& rows) {
  Indices part(rows.begin(), rows.end()), whole(rows.size());
  for (size_t i = 0; i < rows.size(); ++i)
    whole[static_cast<size_t>(rows[i])] = static_cast<int32_t>(i);
  to.part_rows = integers(runtime, part);
  to.whole_rows = integers(runtime, whole);
}

// The rows of ranks with these indices within their sequences, [ranks, sequences, held].
inline std::vector<int64_t> rows_of(const TokenLayout& layout, const Indices& indices) {
  std::vector<int64_t> rows;
  for (size_t i = 0; i < indices.size(); ++i)
    rows.push_back(static_cast<int64_t>(i) / layout.held() % layout.sequences * layout.length +
                   indices[i]);
  return rows;
}

// The inner level takes the tokens of a group, in ascending order, as its sequences.
inline void set_levels(ContextTokens& tokens, Runtime& runtime, const Indices& indices,
                       const Documents& documents) {
  const TokenLayout& layout = tokens.layout;
  tokens.inner.layout = layout.inner_level();
  tokens.ring.layout = layout.ring_level();
  const Indices groups = tokens_by_group(layout, indices);
  const int64_t of_group = layout.rows() * layout.inner, length = layout.held() * layout.inner,
                group = tokens.ring.layout.rank * of_group;
  const auto begin = groups.begin() + group;
  std::vector<int64_t> rows;
  Indices starts, ends;
  for (int64_t i = 0; i < of_group; ++i) {
    const int64_t sequence = i / layout.held() % layout.sequences;
    const auto first = begin + sequence * length;
    rows.push_back(
        sequence * length +
        (std::lower_bound(first, first + length, indices[static_cast<size_t>(group + i)]) - first));
    const auto row = static_cast<size_t>(i / length * layout.length + begin[i]);
    starts.push_back(documents.starts[row]);
    ends.push_back(documents.ends[row]);
  }
  set_rows(tokens.inner, runtime, rows);
  tokens.inner.all_segment_starts = integers(runtime, starts);
  tokens.inner.all_segment_ends = integers(runtime, ends);
  tokens.ring.rank_indices = integers(runtime, groups);
  tokens.ring.all_indices = tokens.all_indices;
}

// Starts of the documents in the runs of a rank.
inline void set_runs(ExchangedTokens& to, Runtime& runtime, const Documents& documents) {
  const TokenLayout& layout = to.layout;
  Indices starts, extended;
  for (int64_t s = 0; s < layout.sequences; ++s) {
    for (const TokenLayout::Run& run : layout.runs(layout.rank)) {
      const int64_t first = documents.starts[static_cast<size_t>(s * layout.length + run.begin)] -
                            run.begin + kRunHalo;
      for (int64_t i = 0; i < kRunHalo; ++i)
        extended.push_back(static_cast<int32_t>(i < first ? 0 : std::max<int64_t>(first, 0)));
      for (int64_t t = run.begin; t < run.end; ++t) {
        const int64_t start =
            documents.starts[static_cast<size_t>(s * layout.length + t)] - run.begin;
        starts.push_back(static_cast<int32_t>(start));
        extended.push_back(static_cast<int32_t>(std::max<int64_t>(start + kRunHalo, 0)));
      }
    }
  }
  const int64_t rows = 2 * layout.sequences, size = layout.held() / 2;
  to.run_starts = integers(runtime, starts).view({rows, size});
  to.extended_starts = integers(runtime, extended).view({rows, kRunHalo + size});
}

// indices: tokens_by_rank(layout, ...).
inline ContextTokens context_tokens(Runtime& runtime, const TokenLayout& layout,
                                    const Indices& indices, const Documents& documents) {
  ContextTokens tokens;
  tokens.layout = layout;
  tokens.rank_indices = integers(runtime, indices);
  Indices counting(indices.size());
  for (size_t i = 0; i < counting.size(); ++i)
    counting[i] = static_cast<int32_t>(static_cast<int64_t>(i) % layout.length);
  tokens.all_indices = integers(runtime, counting);
  set_rows(tokens, runtime, rows_of(layout, indices));
  tokens.all_segment_starts = integers(runtime, documents.starts);
  tokens.all_segment_ends = integers(runtime, documents.ends);
  if (layout.inner > 1) set_levels(tokens, runtime, indices, documents);
  if (layout.by_document) return tokens;
  set_runs(tokens, runtime, documents);
  if (layout.inner > 1) set_runs(tokens.ring, runtime, documents);
  return tokens;
}

}  // namespace megatron::parallel
