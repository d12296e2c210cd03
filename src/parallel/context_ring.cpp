// B sequences, S' tokens of each on a rank; N query heads, K key heads of size D, with values of
// size V; n ranks.
#include <limits>
#include <memory>
#include <optional>

#include "base/error.h"
#include "ops/attention_sinks.h"
#include "parallel/context_blocks.h"

namespace megatron::parallel {
namespace {

Block packed(Tape& tape, const Tensor& k, const Tensor& v) {
  Block block(tape, k.shape(), v.shape(), k.dtype());
  tape.kernels().copy({.x = k, .out = block.k()}, tape.stream());
  tape.kernels().copy({.x = v, .out = block.v()}, tape.stream());
  return block;
}

struct RingAttributes {
  kernels::AttentionBackwardArgs form;
  int64_t first_sink;
  ContextRanks ranks;
  AttentionReach reach;

  const PassedRows* rows() const { return ranks.tokens().passed_rows(reach); }
};

// Backward of ring attention: in each step, gradients of the queries and of a block.
class RingBackward {
 public:
  RingBackward(Backward& backward, const RingAttributes& attributes)
      : backward_(backward),
        tape_(backward.tape()),
        ranks_(attributes.ranks),
        exchange_(block_exchange(ranks_, attributes.rows())),
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

  // The own block comes last, so that the gradients of the others travel meanwhile.
  void run() {
    const Tensor &k = backward_.saved(1), &v = backward_.saved(2);
    const int steps = ranks_.size();
    Block block = packed(tape_, k, v);
    exchange_->start(tape_, block, 1, false);
    for (int step = 1; step < steps; ++step) {
      block = exchange_->finish(tape_);
      if (step + 1 < steps) exchange_->start(tape_, block, step + 1, true);
      exchange_->add_gradient(tape_, gradient_of(block.k(), block.v(), step), step);
    }
    block = {};
    const Block gradient = gradient_of(k, v, 0);
    exchange_->add_received(tape_, gradient);
    const DType type = k.dtype();
    backward_.set(0, of_type(tape_, args_.dq, type, "context.dq"));
    backward_.set(1, of_type(tape_, gradient.k(), type, "context.dk"));
    backward_.set(2, of_type(tape_, gradient.v(), type, "context.dv"));
    if (args_.dbias.out.defined()) backward_.set(3, args_.dbias.out);
  }

 private:
  Block gradient_of(const Tensor& k, const Tensor& v, int step) {
    const Block part(tape_, k.shape(), v.shape(), sums_);
    kernels::AttentionBackwardArgs args = args_;
    args.k = k;
    args.v = v;
    args.k_positions = ranks_.indices(ranks_.at(-step));
    args.dk = part.k();
    args.dv = part.v();
    args.beta_q = step == 1 ? 0 : 1;
    args.dbias.beta = step == 1 ? 0 : 1;
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
  std::unique_ptr<BlockExchange> exchange_;
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

// A rank holds an early and a late chunk of each sequence, of equal size. Its own block is attended
// to causally, like a sequence. All of its queries see the early chunk of a lower rank, whose late
// chunk comes after both of its own. Its late queries see both chunks of a higher rank. Attention
// to whole chunks needs no positions, so libraries can compute it. Null: which keys are seen also
// depends on something else.
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
  const AttentionReach reach = reach_of(options);
  const auto exchange = block_exchange(ranks, ranks.tokens().passed_rows(reach));
  kernels::AttentionArgs args = ops::call_form(options);
  args.q_positions = ranks.indices(ranks.rank());
  args.sinks = ops::sinks_of(options, q.size(2), tape);
  args.bias = options.bias.value;
  Block block = packed(tape, k, v);
  Tensor sum, lse;  // result over the blocks so far
  for (int step = 0; step < ranks.size(); ++step) {
    const bool last = step + 1 == ranks.size();
    if (!last) exchange->start(tape, block, step + 1, true);
    args.k_positions = ranks.indices(ranks.at(-step));
    const auto [part, part_lse] =
        attend(tape, q, block, args, seen_keys(ranks, ranks.at(-step), options));
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
    if (!last) block = exchange->finish(tape);
  }
  const Tensor out = of_type(tape, sum, q.dtype(), "attention.out");
  Node node{.name = "ring_attention",
            .inputs = {heads.q.id, heads.k.id, heads.v.id, options.bias.id},
            .saved = {q, k, v, out, lse, options.bias.value},
            .dgrad = ring_dgrad};
  if (options.sinks) node.weights = {options.sinks};
  node.attributes = RingAttributes{ops::gradient_form(options), options.first_sink, ranks, reach};
  return tape.record_one(std::move(node),
                         out.view({out.size(0) * out.size(1), out.size(2) * out.size(3)}));
}

}  // namespace megatron::parallel
