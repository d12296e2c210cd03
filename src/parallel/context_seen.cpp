// B sequences, S' tokens of each on a rank, U that its queries see; K key heads, D head size; n
// ranks.
#include <numeric>
#include <utility>
#include <vector>

#include "parallel/context_ranks.h"
#include "parallel/seen_tokens.h"

namespace megatron::parallel {
namespace {

// Tensors of keys and values, or of their gradients: [B,tokens,K,D] both.
struct KeysValues {
  Tensor k, v;
};

// Exchange of seen tokens. A message has, for each other rank in order, [2B,tokens,K,D]: the keys
// of all sequences, then the values.
class SeenExchange {
 public:
  SeenExchange(const ContextRanks& ranks, const AttentionReach& reach)
      : ranks_(ranks), seen_(ranks.tokens().layout, reach) {
    for (int rank = 0; rank < ranks.size(); ++rank) {
      const bool other = rank != ranks.rank();
      wanted_.push_back(other ? seen_.count(ranks.rank(), rank) : 0);
      given_.push_back(other ? seen_.count(rank, ranks.rank()) : 0);
    }
  }

  // Keys and values of all tokens that the rank's queries see, from the held ones of each rank.
  KeysValues collect(Tape& tape, const KeysValues& held) const {
    const Message sent = message(tape, held.k, given_), received = message(tape, held.k, wanted_);
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      if (rank == ranks_.rank()) continue;
      int64_t at = 0;
      for (const SeenTokens::Run& run : seen_.seen(rank, ranks_.rank())) {
        put(tape, held, seen_.index_held(ranks_.rank(), run.begin), sent.part(rank), at,
            run.size());
        at += run.size();
      }
    }
    pass(tape, sent, received, "context, seen keys and values");
    const KeysValues all = {keys_seen(tape, held.k), keys_seen(tape, held.k)};
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      const bool own = rank == ranks_.rank();
      const KeysValues from = own ? held : received.part(rank);
      int64_t at = 0;
      for (const SeenTokens::Run& run : seen_.seen(ranks_.rank(), rank)) {
        put(tape, from, own ? seen_.index_held(rank, run.begin) : at, all,
            seen_.index_seen(ranks_.rank(), run.begin), run.size());
        at += run.size();
      }
    }
    return all;
  }

  // The gradients of the held keys and values: sums, over the ranks that saw them, of those of the
  // seen ones.
  KeysValues give_back(Tape& tape, const KeysValues& all) const {
    const Message sent = message(tape, all.k, wanted_), received = message(tape, all.k, given_);
    const DType sums = kernels::accumulator(all.k.dtype());
    const Shape shape = {ranks_.sequences(), ranks_.held(), all.k.size(2), all.k.size(3)};
    const KeysValues own = {tape.empty(shape, sums, "context.dk"),
                            tape.empty(shape, sums, "context.dv")};
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      const bool is_own = rank == ranks_.rank();
      int64_t at = 0;
      for (const SeenTokens::Run& run : seen_.seen(ranks_.rank(), rank)) {
        put(tape, all, seen_.index_seen(ranks_.rank(), run.begin), is_own ? own : sent.part(rank),
            is_own ? seen_.index_held(rank, run.begin) : at, run.size());
        at += run.size();
      }
    }
    pass(tape, sent, received, "context, gradients of seen keys and values");
    for (int rank = 0; rank < ranks_.size(); ++rank) {
      if (rank == ranks_.rank()) continue;
      int64_t at = 0;
      for (const SeenTokens::Run& run : seen_.seen(rank, ranks_.rank())) {
        add(tape, received.part(rank), at, own, seen_.index_held(ranks_.rank(), run.begin),
            run.size());
        at += run.size();
      }
    }
    return {of_type(tape, own.k, all.k.dtype(), "context.dk"),
            of_type(tape, own.v, all.v.dtype(), "context.dv")};
  }

  // i32 [B,U]: index within its sequence of each token that the rank's queries see.
  Tensor positions(Tape& tape) const {
    const Tensor all = ranks_.tokens().all_indices.view({ranks_.sequences(), ranks_.length()}),
                 seen = tape.empty({ranks_.sequences(), tokens_seen()}, DType::i32,
                                   "context.positions");
    int64_t at = 0;
    for (const SeenTokens::Run& run : seen_.seen(ranks_.rank())) {
      tape.kernels().copy(
          {.x = all.slice(1, run.begin, run.size()), .out = seen.slice(1, at, run.size())},
          tape.stream());
      at += run.size();
    }
    return seen;
  }

 private:
  struct Message {
    Tensor rows;                  // [all 2B * tokens, K, D]
    std::vector<int64_t> counts;  // rows to or from each rank
    int64_t sequences;

    KeysValues part(int rank) const {
      const auto at = counts.begin() + rank;
      const int64_t before = std::accumulate(counts.begin(), at, int64_t{0}),
                    tokens = *at / (2 * sequences);
      const Tensor both =
          rows.slice(0, before, *at).view({2 * sequences, tokens, rows.size(1), rows.size(2)});
      return {both.slice(0, 0, sequences), both.slice(0, sequences, sequences)};
    }
  };

  Message message(Tape& tape, const Tensor& like, const std::vector<int64_t>& tokens) const {
    Message made{.rows = {}, .counts = tokens, .sequences = ranks_.sequences()};
    for (int64_t& count : made.counts) count *= 2 * ranks_.sequences();
    const int64_t rows = std::accumulate(made.counts.begin(), made.counts.end(), int64_t{0});
    made.rows = communication_buffer(tape, {rows, like.size(2), like.size(3)}, like.dtype(),
                                     "context.seen");
    return made;
  }

  void pass(Tape& tape, const Message& sent, const Message& received, std::string_view call) const {
    if (seen_.exchanged() == 0) return;
    ranks_.group()
        .all_to_all(sent.rows, received.rows, sent.counts, received.counts, tape.stream(), call)
        .wait(tape.stream());
  }

  int64_t tokens_seen() const {
    int64_t tokens = 0;
    for (const SeenTokens::Run& run : seen_.seen(ranks_.rank())) tokens += run.size();
    return tokens;
  }
  Tensor keys_seen(Tape& tape, const Tensor& like) const {
    return tape.empty({ranks_.sequences(), tokens_seen(), like.size(2), like.size(3)}, like.dtype(),
                      "context.keys");
  }

  // Copies `count` tokens of each sequence.
  static void put(Tape& tape, const KeysValues& from, int64_t first, const KeysValues& to,
                  int64_t at, int64_t count) {
    for (const auto& [x, out] : {std::pair{from.k, to.k}, {from.v, to.v}})
      tape.kernels().copy({.x = x.slice(1, first, count), .out = out.slice(1, at, count)},
                          tape.stream());
  }
  static void add(Tape& tape, const KeysValues& from, int64_t first, const KeysValues& to,
                  int64_t at, int64_t count) {
    for (const auto& [x, sum] : {std::pair{from.k, to.k}, {from.v, to.v}})
      for (int64_t s = 0; s < x.size(0); ++s) {
        const Tensor part = sum.select(0, s).slice(0, at, count);
        tape.kernels().add({.a = part, .b = x.select(0, s).slice(0, first, count), .out = part},
                           tape.stream());
      }
  }

  const ContextRanks& ranks_;
  SeenTokens seen_;
  // Tokens of each other rank that this one sees, and of this one that the others see.
  std::vector<int64_t> wanted_, given_;
};

struct SeenAttributes {
  ContextRanks ranks;
  AttentionReach reach;
};

void collect_dgrad(Backward& backward) {
  const auto& [ranks, reach] = backward.attributes<SeenAttributes>();
  const KeysValues own =
      SeenExchange(ranks, reach)
          .give_back(backward.tape(), {backward.gradient(0), backward.gradient(1)});
  backward.set(0, own.k);
  backward.set(1, own.v);
}

}  // namespace

Var seen_attention(Tape& tape, const ops::Heads& heads, const ops::AttentionOptions& options,
                   const ContextRanks& ranks) {
  const SeenExchange exchange(ranks, reach_of(options));
  const KeysValues all = exchange.collect(tape, {heads.k.value, heads.v.value});
  Node node{.name = "seen_keys", .inputs = {heads.k.id, heads.v.id}, .dgrad = collect_dgrad};
  node.attributes = SeenAttributes{ranks, reach_of(options)};
  const std::vector<Var> keys = tape.record(std::move(node), {all.k, all.v});
  ops::AttentionOptions own = options;
  own.q_positions = ranks.indices(ranks.rank());
  own.k_positions = exchange.positions(tape);
  return ops::attention(tape, {.q = heads.q, .k = keys[0], .v = keys[1], .gate = {}}, own);
}

}  // namespace megatron::parallel
