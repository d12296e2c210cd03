// B sequences of S tokens, S' of them on a rank; N query heads, K key heads, D head size; n ranks.
// In exchanges of heads a "sequence" is what the ranks that exchange them hold together.
#include "parallel/context_attention.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "parallel/context_ranks.h"
#include "parallel/seen_tokens.h"

namespace megatron::parallel {

namespace {

// How many rows this rank sends, or receives, in each step if each sequence is one document.
std::vector<int64_t> counts_of(const TokenLayout& layout, const AttentionReach& reach, bool sent) {
  const SeenTokens seen(layout, reach);
  std::vector<int64_t> counts = {0};
  for (int step = 1; step < layout.ranks; ++step)
    counts.push_back(layout.sequences * (sent ? seen.count(layout.rank_at(step), layout.rank)
                                              : seen.count(layout.rank, layout.rank_at(-step))));
  return counts;
}

}  // namespace

PassedRows::PassedRows(Arena& arena, const TokenLayout& layout, const AttentionReach& of)
    : reach(of),
      sent(arena, layout, counts_of(layout, of, true)),
      received(arena, layout, counts_of(layout, of, false)) {}

PassedRows::Steps::Steps(Arena& arena, const TokenLayout& layout, std::vector<int64_t> counts)
    : counts_(std::move(counts)) {
  for (Tensor* table : {&rows_, &places_})
    *table =
        Tensor::empty(arena, {layout.ranks - 1, layout.rows()}, DType::i32, "batch.passed_rows");
}

void PassedRows::Steps::set(const std::vector<std::vector<int32_t>>& steps, Stream& stream) {
  const auto rows = static_cast<size_t>(rows_.size(1));
  std::vector<int32_t> all, places(steps.size() * rows - rows, -1);
  for (size_t i = 1; i < steps.size(); ++i) {
    counts_[i] = std::ssize(steps[i]);
    all.insert(all.end(), steps[i].begin(), steps[i].end());
    all.resize(i * rows);
    for (size_t place = 0; place < steps[i].size(); ++place)
      places[(i - 1) * rows + static_cast<size_t>(steps[i][place])] = static_cast<int32_t>(place);
  }
  copy_from(rows_, std::span<const int32_t>(all), stream);
  copy_from(places_, std::span<const int32_t>(places), stream);
}

std::string_view name(ContextExchange exchange) {
  constexpr std::string_view kNames[] = {"p2p", "all_gather", "a2a", "a2a+p2p"};
  return kNames[static_cast<size_t>(exchange)];
}

int ContextParallel::head_ranks() const {
  if (alone(group)) return 1;
  if (exchange == ContextExchange::a2a_p2p) return inner->size();
  return exchange == ContextExchange::a2a ? group->size() : 1;
}

AttentionReach reach_of(const ops::AttentionOptions& options) {
  return {.window = options.window, .chunk = options.chunk, .two_sided = !options.causal};
}

Tensor of_type(Tape& tape, const Tensor& x, DType type, std::string_view label) {
  if (x.dtype() == type) return x;
  Tensor out = tape.empty(x.shape(), type, label);
  tape.kernels().copy({.x = x, .out = out}, tape.stream());
  return out;
}

void ContextRanks::copy(Tape& tape, const Tensor& parts, const Tensor& whole,
                        ContextCopy direction) const {
  const auto rows = [&](const Tensor& x) {
    return x.view({x.size(0) * x.size(1), x.size(2) * x.size(3)});
  };
  const bool to_whole = direction == ContextCopy::to_whole;
  tape.kernels().take_rows({.x = rows(to_whole ? parts : whole),
                            .index = to_whole ? tokens_.whole_rows : tokens_.part_rows,
                            .out = rows(to_whole ? whole : parts)},
                           tape.stream());
}

namespace {

void gather_sequence_dgrad(Backward& backward) {
  if (!backward.needs(0)) return;
  const auto& ranks = backward.attributes<ContextRanks>();
  const Tensor& dwhole = backward.gradient(0);
  Tape& tape = backward.tape();
  const int64_t heads = dwhole.size(2), head_size = dwhole.size(3);
  const Tensor parts = ranks.parts(tape, heads, head_size, dwhole.dtype());
  ranks.copy(tape, parts, dwhole, ContextCopy::to_part);
  const Tensor own = backward.empty({ranks.sequences(), ranks.held(), heads, head_size},
                                    dwhole.dtype(), "context.gradient");
  ranks.group()
      .reduce_scatter(parts, own, comm::Reduce::sum, tape.stream(), "context, key gradients")
      .wait(tape.stream());
  backward.set(0, own);
}

// Gathers x [B,S',K,D] of all ranks into whole sequences [B,S,K,D].
Var gather_sequence(Tape& tape, const Var& x, const ContextRanks& ranks) {
  const int64_t heads = x.value.size(2), head_size = x.value.size(3);
  const Tensor parts = ranks.parts(tape, heads, head_size, x.value.dtype());
  ranks.group()
      .all_gather(contiguous(tape, x.value, "context.keys"), parts, tape.stream(), "context, keys")
      .wait(tape.stream());
  const Tensor whole = tape.empty({ranks.sequences(), ranks.length(), heads, head_size},
                                  x.value.dtype(), "context.keys");
  ranks.copy(tape, parts, whole, ContextCopy::to_whole);
  Node node{.name = "gather_sequence", .inputs = {x.id}, .dgrad = gather_sequence_dgrad};
  node.attributes = ranks;
  return tape.record_one(std::move(node), whole);
}

// Number and first index of a rank's heads among all N. If there are fewer heads than ranks,
// consecutive ranks share a head.
struct HeadShare {
  int64_t heads;  // N
  int ranks;

  int64_t count() const { return std::max<int64_t>(heads / ranks, 1); }
  int64_t first(int rank) const { return rank * heads / ranks; }
  bool shared() const { return heads < ranks; }
};

// Sends each rank its part of `sent`.
void exchange(Tape& tape, const Tensor& sent, const Tensor& received, const ContextRanks& ranks,
              std::string_view call) {
  const std::vector<int64_t> rows(static_cast<size_t>(ranks.size()), ranks.sequences());
  ranks.group().all_to_all(sent, received, rows, rows, tape.stream(), call).wait(tape.stream());
}

// x [B,S',N,D] of the held tokens becomes [B,S,N/n,D] of the rank's heads.
Tensor to_heads(Tape& tape, const Tensor& x, const ContextRanks& ranks, std::string_view call) {
  const HeadShare share{x.size(2), ranks.size()};
  const int64_t head_size = x.size(3);
  const Tensor sent = ranks.parts(tape, share.count(), head_size, x.dtype()),
               received = ranks.parts(tape, share.count(), head_size, x.dtype());
  for (int rank = 0; rank < ranks.size(); ++rank)
    tape.kernels().copy(
        {.x = x.slice(2, share.first(rank), share.count()), .out = ranks.part_of(sent, rank)},
        tape.stream());
  exchange(tape, sent, received, ranks, call);
  const Tensor whole = tape.empty({ranks.sequences(), ranks.length(), share.count(), head_size},
                                  x.dtype(), "context.heads");
  ranks.copy(tape, received, whole, ContextCopy::to_whole);
  return whole;
}

// The inverse: [B,S,N/n,D] of the rank's heads becomes [B,S',N,D] of the held tokens. Sums a shared
// head over the ranks that share it.
Tensor to_tokens(Tape& tape, const Tensor& whole, int64_t heads, const ContextRanks& ranks,
                 std::string_view call) {
  const HeadShare share{heads, ranks.size()};
  const int64_t head_size = whole.size(3);
  const Tensor sent = ranks.parts(tape, share.count(), head_size, whole.dtype()),
               received = ranks.parts(tape, share.count(), head_size, whole.dtype());
  ranks.copy(tape, sent, whole, ContextCopy::to_part);
  exchange(tape, sent, received, ranks, call);
  const Tensor out = tape.empty({ranks.sequences(), ranks.held(), heads, head_size}, whole.dtype(),
                                "context.rows");
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const Tensor part = ranks.part_of(received, rank);
    if (share.shared() && rank + 1 < ranks.size() && share.first(rank + 1) == share.first(rank)) {
      const Tensor next = ranks.part_of(received, rank + 1);
      tape.kernels().add({.a = part, .b = next, .out = next}, tape.stream());
      continue;
    }
    tape.kernels().copy({.x = part, .out = out.slice(2, share.first(rank), share.count())},
                        tape.stream());
  }
  return out;
}

struct HeadExchange {
  ContextRanks ranks;
  int64_t heads;  // N, over all ranks
};

void to_heads_dgrad(Backward& backward) {
  if (!backward.needs(0)) return;
  const auto& [ranks, heads] = backward.attributes<HeadExchange>();
  backward.set(0, to_tokens(backward.tape(), backward.gradient(0), heads, ranks,
                            "context, gradients of heads"));
}

void to_tokens_dgrad(Backward& backward) {
  if (!backward.needs(0)) return;
  const auto& [ranks, heads] = backward.attributes<HeadExchange>();
  const Tensor& dy = backward.gradient(0);
  const Tensor dx = to_heads(backward.tape(),
                             dy.view({ranks.sequences(), ranks.held(), heads, dy.size(1) / heads}),
                             ranks, "context, gradients of tokens");
  backward.set(0, dx.view({dx.size(0) * dx.size(1), dx.size(2) * dx.size(3)}));
}

Var heads_of_sequence(Tape& tape, const Var& x, const ContextRanks& ranks) {
  Node node{.name = "heads_of_sequence", .inputs = {x.id}, .dgrad = to_heads_dgrad};
  node.attributes = HeadExchange{ranks, x.value.size(2)};
  return tape.record_one(std::move(node), to_heads(tape, x.value, ranks, "context, heads"));
}

// Rows [B*S, N/n*D] of the rank's heads become [B*S', N*D] of the held tokens.
Var rows_of_tokens(Tape& tape, const Var& y, int64_t heads, const ContextRanks& ranks) {
  const int64_t own = heads / ranks.size();
  const Tensor whole =
      y.value.view({ranks.sequences(), ranks.length(), own, y.value.size(1) / own});
  const Tensor out = to_tokens(tape, whole, heads, ranks, "context, tokens");
  Node node{.name = "rows_of_tokens", .inputs = {y.id}, .dgrad = to_tokens_dgrad};
  node.attributes = HeadExchange{ranks, heads};
  return tape.record_one(std::move(node),
                         out.view({out.size(0) * out.size(1), out.size(2) * out.size(3)}));
}

// Attention of the held queries to the keys of all ranks, which hold all heads.
Var attention_over_tokens(Tape& tape, const ops::Heads& heads, ops::AttentionOptions options,
                          const ContextRanks& ranks, ContextExchange exchange) {
  const bool documents = options.window_start.defined() || options.window_end.defined();
  const AttentionReach reach = reach_of(options);
  if (!documents && SeenTokens(ranks.tokens().layout, reach).few())
    return seen_attention(tape, heads, options, ranks);
  if (exchange != ContextExchange::all_gather || ranks.tokens().passed_rows(reach) != nullptr)
    return ring_attention(tape, heads, options, ranks);
  options.q_positions = ranks.indices(ranks.rank());
  options.k_positions = ranks.tokens().all_indices.view({ranks.sequences(), ranks.length()});
  const Var k = gather_sequence(tape, heads.k, ranks), v = gather_sequence(tape, heads.v, ranks);
  return ops::attention(tape, {.q = heads.q, .k = k, .v = v, .gate = {}}, options);
}

struct Columns {
  int64_t first, all;
};

void columns_dgrad(Backward& backward) {
  const auto& [first, all] = backward.attributes<Columns>();
  const Tensor& own = backward.gradient(0);
  const Tensor whole = backward.empty({own.size(0), all}, own.dtype(), "context.dbias");
  backward.kernels().fill({.out = whole}, backward.stream());
  backward.kernels().copy({.x = own, .out = whole.slice(1, first, own.size(1))}, backward.stream());
  backward.set(0, whole);
}

// Columns [first, first + count) of x; a view. The gradient of the others is 0.
Var columns_of(Tape& tape, const Var& x, int64_t first, int64_t count) {
  Node node{.name = "columns", .inputs = {x.id}, .dgrad = columns_dgrad};
  node.attributes = Columns{first, x.value.size(1)};
  return tape.record_one(std::move(node), x.value.slice(1, first, count));
}

// The options of a rank's share of all N heads, for all tokens of `ranks`.
ops::AttentionOptions options_of_heads(Tape& tape, const ops::AttentionOptions& options,
                                       int64_t all, const ContextRanks& ranks) {
  ops::AttentionOptions own = options;
  const int64_t count = all / ranks.size(), first = ranks.rank() * count;
  const Tensor &starts = ranks.tokens().all_segment_starts, &ends = ranks.tokens().all_segment_ends;
  if (own.window_start.defined())
    own.window_start = starts.view({ranks.sequences(), ranks.length()});
  if (own.window_end.defined()) own.window_end = ends.view({ranks.sequences(), ranks.length()});
  own.dropout.first_head += first;
  own.first_sink += first;
  if (own.bias.value.defined()) own.bias = columns_of(tape, own.bias, first, count);
  if (own.zero_sinks.defined()) own.zero_sinks = own.zero_sinks.slice(0, first, count);
  return own;
}

}  // namespace

Var context_attention(Tape& tape, const ops::Heads& heads, const ops::AttentionOptions& options,
                      const ContextTokens& tokens, const ContextParallel& context) {
  if (alone(context.group)) return ops::attention(tape, heads, options);
  const bool levels = context.exchange == ContextExchange::a2a_p2p;
  if (!levels && context.exchange != ContextExchange::a2a)
    return attention_over_tokens(tape, heads, options,
                                 ContextRanks(*context.group, context.async, tokens),
                                 context.exchange);
  const ContextRanks ranks = levels ? ContextRanks(*context.inner, nullptr, tokens.inner)
                                    : ContextRanks(*context.group, nullptr, tokens);
  const int64_t all = heads.q.value.size(2);
  const ops::AttentionOptions own = options_of_heads(tape, options, all, ranks);
  const ops::Heads whole{.q = heads_of_sequence(tape, heads.q, ranks),
                         .k = heads_of_sequence(tape, heads.k, ranks),
                         .v = heads_of_sequence(tape, heads.v, ranks),
                         .gate = {}};
  const Var y =
      levels ? attention_over_tokens(tape, whole, own,
                                     ContextRanks(*context.ring, context.ring_async, tokens.ring),
                                     ContextExchange::p2p)
             : ops::attention(tape, whole, own);
  return rows_of_tokens(tape, y, all, ranks);
}

Var cross_attention(Tape& tape, const ops::Heads& heads, ops::AttentionOptions options,
                    const ContextTokens& queries, const ContextTokens& keys,
                    const ContextParallel& context) {
  MG_ASSERT(!options.causal && options.window == 0 && options.chunk == 0);
  if (alone(context.group)) return ops::attention(tape, heads, options);
  const ContextRanks from(*context.group, nullptr, queries), to(*context.group, nullptr, keys);
  options.q_positions = from.indices(from.rank());
  options.k_positions = keys.all_indices.view({to.sequences(), to.length()});
  return ops::attention(tape,
                        {.q = heads.q,
                         .k = gather_sequence(tape, heads.k, to),
                         .v = gather_sequence(tape, heads.v, to),
                         .gate = {}},
                        options);
}

}  // namespace megatron::parallel
