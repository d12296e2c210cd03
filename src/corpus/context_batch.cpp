#include "corpus/context_batch.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace megatron::corpus {
namespace {

using parallel::ContextTokens;
using parallel::ExchangedTokens;
using parallel::TokenLayout;

using Values = std::vector<int32_t>;

void fill_levels(const HostBatch& host, ContextTokens& tokens, Stream& stream) {
  ExchangedTokens &inner = tokens.inner, &ring = tokens.ring;
  const Values groups = parallel::tokens_by_group(host.layout, host.rank_indices);
  const auto rows = static_cast<size_t>(ring.layout.rows()),  // of a group
      held = static_cast<size_t>(host.layout.held()),
             sequences = static_cast<size_t>(host.layout.sequences), length = rows / sequences,
             group = static_cast<size_t>(ring.layout.rank) * rows;
  Values part_rows(rows), whole_rows(rows);
  for (size_t i = 0; i < rows; ++i) {
    const size_t sequence = i / held % sequences;
    const auto begin = groups.begin() + static_cast<std::ptrdiff_t>(group + sequence * length);
    const auto row =
        sequence * length +
        static_cast<size_t>(std::lower_bound(begin, begin + static_cast<std::ptrdiff_t>(length),
                                             host.rank_indices[group + i]) -
                            begin);
    part_rows[i] = static_cast<int32_t>(row);
    whole_rows[row] = static_cast<int32_t>(i);
  }
  const auto of_group = [&](const Values& whole) {
    Values values;
    for (size_t i = 0; i < rows && !whole.empty(); ++i)
      values.push_back(whole[i / length * static_cast<size_t>(host.layout.length) +
                             static_cast<size_t>(groups[group + i])]);
    return values;
  };
  const Values starts = of_group(host.whole().segment_starts),
               ends = of_group(host.whole().segment_ends);
  for (const auto& [values, tensor] : {std::pair{&groups, &ring.rank_indices},
                                       {&part_rows, &inner.part_rows},
                                       {&whole_rows, &inner.whole_rows},
                                       {&starts, &inner.all_segment_starts},
                                       {&ends, &inner.all_segment_ends}})
    if (tensor->defined()) copy_from(*tensor, std::span<const int32_t>(*values), stream);
}

void fill_indices(const HostBatch& host, ContextTokens& tokens, Stream& stream) {
  const TokenLayout& layout = host.layout;
  const size_t count = host.rank_indices.size();
  Values all(count), part_rows(count), whole_rows(count);
  const auto length = static_cast<size_t>(layout.length), held = static_cast<size_t>(layout.held()),
             sequences = static_cast<size_t>(layout.sequences);
  for (size_t i = 0; i < count; ++i) {
    all[i] = static_cast<int32_t>(i % length);
    const size_t sequence = i / held % sequences,
                 row = sequence * length + static_cast<size_t>(host.rank_indices[i]);
    part_rows[i] = static_cast<int32_t>(row);
    whole_rows[row] = static_cast<int32_t>(i);
  }
  for (const auto& [values, tensor] : {std::pair{&host.rank_indices, &tokens.rank_indices},
                                       {&all, &tokens.all_indices},
                                       {&part_rows, &tokens.part_rows},
                                       {&whole_rows, &tokens.whole_rows}})
    copy_from(*tensor, std::span<const int32_t>(*values), stream);
  if (layout.inner > 1) fill_levels(host, tokens, stream);
}

void fill_run_starts(ExchangedTokens& tokens, const TokenLayout& layout, const Values& starts,
                     Stream& stream) {
  if (!tokens.run_starts.defined()) return;
  constexpr auto kHalo = static_cast<int32_t>(parallel::kRunHalo);
  Values of_runs, extended;
  for (int64_t s = 0; s < layout.sequences; ++s) {
    for (const TokenLayout::Run& run : layout.runs(layout.rank)) {
      // The rows before a run belong to the document of its first token or to an earlier one.
      const int32_t first = starts[static_cast<size_t>(s * layout.length + run.begin)] -
                            static_cast<int32_t>(run.begin) + kHalo;
      for (int32_t i = 0; i < kHalo; ++i) extended.push_back(i < first ? 0 : std::max(first, 0));
      for (int64_t t = run.begin; t < run.end; ++t) {
        const int32_t start =
            starts[static_cast<size_t>(s * layout.length + t)] - static_cast<int32_t>(run.begin);
        of_runs.push_back(start);
        extended.push_back(std::max(start + kHalo, 0));
      }
    }
  }
  copy_from(tokens.run_starts, std::span<const int32_t>(of_runs), stream);
  copy_from(tokens.extended_starts, std::span<const int32_t>(extended), stream);
}

void allocate_passed(Arena& arena, const TokenLayout& layout,
                     std::span<const parallel::AttentionReach> reaches, ExchangedTokens& tokens) {
  for (const parallel::AttentionReach& reach : reaches)
    if (reach.limited_in(layout.length)) tokens.passed.emplace_back(arena, layout, reach);
}

void fill_passed(const HostBatch& host, const TokenLayout& layout, const Values& indices,
                 ExchangedTokens& tokens, Stream& stream) {
  const HostBatch& whole = host.whole();
  for (parallel::PassedRows& passed : tokens.passed) {
    const parallel::SeenRows rows = parallel::seen_rows(layout, indices, whole.segment_starts,
                                                        whole.segment_ends, passed.reach);
    passed.sent.set(rows.sent, stream);
    passed.received.set(rows.received, stream);
  }
}

}  // namespace

void allocate_context(Runtime& runtime, const HostBatch& host,
                      std::span<const parallel::AttentionReach> reaches, ContextTokens& tokens) {
  Arena& arena = runtime.arena(MemoryClass::activations);
  const auto tensor = [&](int64_t size, const char* label) {
    return Tensor::empty(arena, {size}, DType::i32, label);
  };
  const bool confined = !host.segment_starts.empty(), ended = !host.segment_ends.empty();
  const auto segments = [&](ExchangedTokens& of, int64_t size) {
    if (confined) of.all_segment_starts = tensor(size, "batch.all_segment_starts");
    if (ended) of.all_segment_ends = tensor(size, "batch.all_segment_ends");
  };
  const auto runs = [&](ExchangedTokens& of, const TokenLayout& layout) {
    if (!confined || host.layout.by_document) return;
    const int64_t rows = 2 * layout.sequences, size = layout.held() / 2;
    of.run_starts = tensor(rows * size, "batch.run_starts").view({rows, size});
    of.extended_starts = tensor(rows * (parallel::kRunHalo + size), "batch.extended_starts")
                             .view({rows, parallel::kRunHalo + size});
  };
  const int64_t all = host.layout.sequences * host.layout.length;
  for (Tensor* indices :
       {&tokens.rank_indices, &tokens.all_indices, &tokens.part_rows, &tokens.whole_rows})
    *indices = tensor(all, "batch.context_indices");
  segments(tokens, all);
  runs(tokens, host.layout);
  const bool levels = host.layout.inner > 1;
  if (levels) {
    ExchangedTokens &inner = tokens.inner, &ring = tokens.ring;
    inner.layout = host.layout.inner_level();
    ring.layout = host.layout.ring_level();
    const int64_t of_group = host.layout.rows() * host.layout.inner;
    for (Tensor* rows : {&inner.part_rows, &inner.whole_rows})
      *rows = tensor(of_group, "batch.context_indices");
    segments(inner, of_group);
    ring.rank_indices = tensor(all, "batch.context_indices");
    ring.all_indices = tokens.all_indices;
    runs(ring, ring.layout);
  }
  if (confined || ended) {
    ExchangedTokens& passing = levels ? tokens.ring : tokens;
    allocate_passed(arena, passing.layout, reaches, passing);
  } else if (runtime.device().has_data()) {
    fill_indices(host, tokens, runtime.stream());
  }
}

void fill_context(Runtime& runtime, const HostBatch& host, ContextTokens& tokens) {
  const HostBatch& whole = host.whole();
  Stream& stream = runtime.stream();
  for (const auto& [values, tensor] : {std::pair{&whole.segment_starts, &tokens.all_segment_starts},
                                       {&whole.segment_ends, &tokens.all_segment_ends}})
    if (tensor->defined()) copy_from(*tensor, std::span<const int32_t>(*values), stream);
  if (tokens.all_segment_starts.defined() || tokens.all_segment_ends.defined())
    fill_indices(host, tokens, stream);
  fill_run_starts(tokens, host.layout, whole.segment_starts, stream);
  fill_run_starts(tokens.ring, tokens.ring.layout, whole.segment_starts, stream);
  fill_passed(host, host.layout, host.rank_indices, tokens, stream);
  if (!tokens.ring.passed.empty())
    fill_passed(host, tokens.ring.layout, parallel::tokens_by_group(host.layout, host.rank_indices),
                tokens.ring, stream);
}

}  // namespace megatron::corpus
