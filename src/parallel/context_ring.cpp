// B sequences, S' tokens of each on a rank; N query heads, K key heads of size D, with values of
// size V; n ranks.
#include <fmt/core.h>

#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "ops/attention_sinks.h"
#include "parallel/context_ranks.h"

namespace megatron::parallel {
namespace {

// Keys and values, or their gradients, of one rank's tokens: [B,S',K,D] and [B,S',K,V], one after
// the other in one message.
class Block {
 public:
  Block() = default;
  Block(Tape& tape, const Tensor& k, const Tensor& v, DType type)
      : k_(k.shape()),
        v_(v.shape()),
        both_(communication_buffer(tape, {k_.elements() + v_.elements()}, type, "context.block")) {}

  const Tensor& both() const { return both_; }
  Tensor k() const { return both_.slice(0, 0, k_.elements()).view(k_); }
  Tensor v() const { return both_.slice(0, k_.elements(), v_.elements()).view(v_); }

 private:
  Shape k_, v_;
  Tensor both_;  // [elements]
};

// Sends blocks to the next rank of the ring and receives them from the previous one.
class Ring {
 public:
  explicit Ring(const ContextRanks& ranks) : ranks_(ranks) {}

  // Rank whose block this rank holds in step i.
  int source(int step) const { return (ranks_.rank() + ranks_.size() - step) % ranks_.size(); }

  // what: contents of the blocks. number: step of the ring in which the block is attended to.
  comm::Work pass(Tape& tape, const Block& sent, const Block& received, std::string_view what,
                  int number) const {
    const int64_t count = sent.both().size(0);
    std::vector<int64_t> to(static_cast<size_t>(ranks_.size())), from(to);
    to[static_cast<size_t>((ranks_.rank() + 1) % ranks_.size())] = count;
    from[static_cast<size_t>(source(1))] = count;
    return ranks_.overlapped().all_to_all(sent.both(), received.both(), to, from, tape.stream(),
                                          fmt::format("context, {}, block {}", what, number));
  }

 private:
  const ContextRanks& ranks_;
};

Block packed(Tape& tape, const Tensor& k, const Tensor& v) {
  Block block(tape, k, v, k.dtype());
  tape.kernels().copy({.x = k, .out = block.k()}, tape.stream());
  tape.kernels().copy({.x = v, .out = block.v()}, tape.stream());
  return block;
}

struct RingAttributes {
  kernels::AttentionBackwardArgs form;
  int64_t first_sink;
  ContextRanks ranks;
};

// Backward of ring attention: in each step, gradients of the queries and of the block held then.
class RingBackward {
 public:
  RingBackward(Backward& backward, const RingAttributes& attributes)
      : backward_(backward),
        tape_(backward.tape()),
        ranks_(attributes.ranks),
        ring_(ranks_),
        args_(attributes.form),
        first_sink_(attributes.first_sink),
        sums_(kernels::accumulator(backward.saved(0).dtype())) {
    args_.q = backward.saved(0);
    args_.out = backward.saved(3);
    args_.lse = backward.saved(4);
    args_.dout = backward.gradient(0).view(args_.out.shape());
    args_.q_positions = ranks_.indices(ranks_.rank());
    args_.dq = tape_.empty(args_.q.shape(), sums_, "context.dq");
    args_.bias = backward.saved(5);
    if (args_.bias.defined() && backward.needs(3))
      args_.dbias.out = tape_.empty(args_.bias.shape(), sums_, "context.dbias");
  }

  // The gradient of a block follows it around the ring, one step behind, and ends at its rank.
  void run() {
    const Tensor &k = backward_.saved(1), &v = backward_.saved(2);
    Block block = packed(tape_, k, v);
    Block gradient;
    comm::Work arrival;
    for (int step = 0; step < ranks_.size(); ++step) {
      Block next;
      comm::Work passing;
      const bool last = step + 1 == ranks_.size();
      if (!last) {
        next = Block(tape_, k, v, k.dtype());
        passing = ring_.pass(tape_, block, next, "keys and values", step + 1);
      }
      const Block part = gradient_of(block, step);
      if (step > 0) {
        arrival.wait(tape_.stream());
        tape_.kernels().add({.a = gradient.both(), .b = part.both(), .out = part.both()},
                            tape_.stream());
      }
      gradient = Block(tape_, k, v, sums_);
      arrival = ring_.pass(tape_, part, gradient, "gradients of keys and values", step);
      if (!last) passing.wait(tape_.stream());
      block = std::move(next);
    }
    arrival.wait(tape_.stream());
    const DType type = k.dtype();
    backward_.set(0, of_type(tape_, args_.dq, type, "context.dq"));
    backward_.set(1, of_type(tape_, gradient.k(), type, "context.dk"));
    backward_.set(2, of_type(tape_, gradient.v(), type, "context.dv"));
    if (args_.dbias.out.defined()) backward_.set(3, args_.dbias.out);
  }

 private:
  Block gradient_of(const Block& block, int step) {
    Block part(tape_, block.k(), block.v(), sums_);
    kernels::AttentionBackwardArgs args = args_;
    args.k = block.k();
    args.v = block.v();
    args.k_positions = ranks_.indices(ring_.source(step));
    args.dk = part.k();
    args.dv = part.v();
    args.beta_q = step == 0 ? 0 : 1;
    args.dbias.beta = step == 0 ? 0 : 1;
    if (step == 0) {
      const ops::SinkGradient sinks = ops::sink_gradient(backward_, first_sink_, args_.q.size(2));
      args.sinks = sinks.values;
      args.dsinks = sinks.gradient;
    }
    tape_.kernels().attention_backward(args, tape_.stream());
    return part;
  }

  Backward& backward_;
  Tape& tape_;
  const ContextRanks& ranks_;
  Ring ring_;
  kernels::AttentionBackwardArgs args_;
  int64_t first_sink_;
  DType sums_;
};

void ring_dgrad(Backward& backward) {
  RingBackward(backward, backward.attributes<RingAttributes>()).run();
}

// The queries from `first` on see the first `keys` keys of a block; if causal, those up to
// themselves.
struct SeenKeys {
  int64_t first = 0, keys = 0;
  bool causal = false;
};

// A rank holds an early and a late chunk of each sequence, of equal size. Its own block is like a
// sequence. All its queries see the early chunk of the ranks before it, whose late chunk follows
// both of its own; its late queries see all of the block of a rank behind it. Attention to whole
// chunks needs no positions, so that libraries take it. Null: which keys are seen depends on more.
std::optional<SeenKeys> seen_keys(const ContextRanks& ranks, int source,
                                  const ops::AttentionOptions& options) {
  if (options.window_start.defined() || options.window_end.defined() || options.window > 0 ||
      options.chunk > 0 || options.dropout.p > 0 || options.bias.value.defined() ||
      ranks.length() % (2 * ranks.size()) != 0)
    return std::nullopt;
  const int64_t held = ranks.held();
  if (source == ranks.rank() || !options.causal) return SeenKeys{0, held, options.causal};
  return source < ranks.rank() ? SeenKeys{.keys = held / 2}
                               : SeenKeys{.first = held / 2, .keys = held};
}

struct Attended {
  Tensor out, lse;
};

// Attention of the held queries to one block.
Attended attend(Tape& tape, const Tensor& q, const Block& block, kernels::AttentionArgs args,
                const std::optional<SeenKeys>& seen) {
  const auto lse_of = [&](int64_t queries) {
    return tape.empty({q.size(0), q.size(2), queries}, kernels::accumulator(q.dtype()),
                      "context.part_lse");
  };
  const Shape shape = {q.size(0), q.size(1), q.size(2), block.v().size(3)};
  const Attended part{tape.empty(shape, q.dtype(), "context.part"), lse_of(q.size(1))};
  args.q = q;
  args.k = block.k();
  args.v = block.v();
  args.out = part.out;
  args.lse = part.lse;
  const int64_t first = seen ? seen->first : 0, queries = q.size(1) - first;
  if (seen) {
    args.q_positions = args.k_positions = {};
    args.causal = seen->causal;
    args.k = args.k.slice(1, 0, seen->keys);
    args.v = args.v.slice(1, 0, seen->keys);
  }
  if (first > 0) {
    tape.kernels().fill({.out = part.out, .value = 0}, tape.stream());
    tape.kernels().fill({.out = part.lse, .value = -std::numeric_limits<double>::infinity()},
                        tape.stream());
    args.q = q.slice(1, first, queries);
    args.out = part.out.slice(1, first, queries);
    args.lse = lse_of(queries);
  }
  tape.kernels().attention(args, tape.stream());
  if (first > 0)
    tape.kernels().copy({.x = args.lse, .out = part.lse.slice(2, first, queries)}, tape.stream());
  return part;
}

}  // namespace

Var ring_attention(Tape& tape, const ops::Heads& heads, const ops::AttentionOptions& options,
                   const ContextRanks& ranks) {
  const Tensor &q = heads.q.value, &k = heads.k.value, &v = heads.v.value;
  const DType sums = kernels::accumulator(q.dtype());
  const Ring ring(ranks);
  kernels::AttentionArgs args = ops::call_form(options);
  args.q_positions = ranks.indices(ranks.rank());
  args.sinks = ops::sinks_of(options, q.size(2), tape);
  args.bias = options.bias.value;
  Block block = packed(tape, k, v);
  Tensor sum, lse;  // result over the blocks so far
  for (int step = 0; step < ranks.size(); ++step) {
    Block next;
    comm::Work passing;
    if (step + 1 < ranks.size()) {
      next = Block(tape, k, v, k.dtype());
      passing = ring.pass(tape, block, next, "keys and values", step + 1);
    }
    args.k_positions = ranks.indices(ring.source(step));
    const auto [part, part_lse] =
        attend(tape, q, block, args, seen_keys(ranks, ring.source(step), options));
    args.sinks = {};  // sinks count once, with the first block
    if (step == 0) {
      sum = of_type(tape, part, sums, "context.sum");
      lse = part_lse;
    } else {
      const Tensor merged = tape.empty(lse.shape(), sums, "attention.lse");
      tape.kernels().attention_merge(
          {.part = part, .part_lse = part_lse, .lse = lse, .out = sum, .merged_lse = merged},
          tape.stream());
      lse = merged;
    }
    if (step + 1 < ranks.size()) passing.wait(tape.stream());
    block = std::move(next);
  }
  const Tensor out = of_type(tape, sum, q.dtype(), "attention.out");
  Node node{.name = "ring_attention",
            .inputs = {heads.q.id, heads.k.id, heads.v.id, options.bias.id},
            .saved = {q, k, v, out, lse, options.bias.value},
            .dgrad = ring_dgrad};
  if (options.sinks) node.weights = {options.sinks};
  node.attributes = RingAttributes{ops::gradient_form(options), options.first_sink, ranks};
  return tape.record_one(std::move(node),
                         out.view({out.size(0) * out.size(1), out.size(2) * out.size(3)}));
}

}  // namespace megatron::parallel
