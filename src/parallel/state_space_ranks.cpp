// B sequences, T' rows of tokens that a rank holds; R = 2 B runs of L tokens; C columns; n ranks.
#include "parallel/state_space_ranks.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "parallel/context_ranks.h"

namespace megatron::parallel {
namespace {

using Columns = ops::StateSpaceExchange::Columns;

// Exchanges heads for tokens. A message has, for each rank in order, [B,S',width].
class HeadRanks {
 public:
  explicit HeadRanks(const ContextRanks& ranks) : ranks_(ranks) {}

  int size() const { return ranks_.size(); }
  int rank() const { return ranks_.rank(); }
  Tensor starts() const { return ranks_.tokens().all_segment_starts; }

  Tensor to_heads(Tape& tape, const Tensor& rows, std::span<const Columns> columns) const {
    const int64_t width = own_width(columns);
    const Tensor sent = message(tape, width, rows.dtype()),
                 received = message(tape, width, rows.dtype());
    for_each_block(columns, [&](const Block& block) {
      for (int rank = 0; rank < size(); ++rank)
        tape.kernels().copy({.x = rows.slice(1, block.first_of(rank), block.width),
                             .out = sent.select(0, rank).slice(1, block.part, block.width)},
                            tape.stream());
    });
    exchange(tape, sent, received, "context, heads of state spaces");
    const Tensor whole =
        tape.empty({ranks_.sequences(), ranks_.length(), 1, width}, rows.dtype(), "context.heads");
    ranks_.copy(tape, parts(received), whole, ContextCopy::to_whole);
    return whole.view({ranks_.sequences() * ranks_.length(), width});
  }

  Tensor to_tokens(Tape& tape, const Tensor& rows, std::span<const Columns> columns) const {
    const int64_t width = own_width(columns), held = ranks_.sequences() * ranks_.held();
    const Tensor sent = message(tape, width, rows.dtype()),
                 received = message(tape, width, rows.dtype());
    ranks_.copy(tape, parts(sent), rows.view({ranks_.sequences(), ranks_.length(), 1, width}),
                ContextCopy::to_part);
    exchange(tape, sent, received, "context, tokens of state spaces");
    int64_t all = 0;
    for (const Columns& c : columns) all += c.count * c.size;
    const Tensor out = tape.empty({held, all}, rows.dtype(), "context.tokens");
    for_each_block(columns, [&](const Block& block) {
      for (int rank = 0; rank < size(); rank += block.sharing) {
        const Tensor to = out.slice(1, block.first_of(rank), block.width);
        const Tensor from = received.slice(2, block.part, block.width);
        tape.kernels().copy(
            {.x = block.sharing == 1 ? from.select(0, rank) : sum(tape, from, rank, block.sharing),
             .out = to},
            tape.stream());
      }
    });
    return out;
  }

 private:
  // The columns of a rank's heads or groups. If there are fewer groups than ranks, consecutive
  // ranks share one.
  struct Block {
    int64_t all, part;  // first column, of all heads' and of a rank's
    int64_t width;      // of a rank's
    int sharing;        // ranks
    int64_t first_of(int rank) const { return all + rank / sharing * width; }
  };
  template <class F>
  void for_each_block(std::span<const Columns> columns, F f) const {
    int64_t all = 0, part = 0;
    for (const Columns& c : columns) {
      const int64_t width = own_count(c) * c.size;
      f(Block{all, part, width, c.count < size() ? static_cast<int>(size() / c.count) : 1});
      all += c.count * c.size;
      part += width;
    }
  }
  int64_t own_count(const Columns& c) const { return std::max<int64_t>(c.count / size(), 1); }
  int64_t own_width(std::span<const Columns> columns) const {
    int64_t width = 0;
    for (const Columns& c : columns) width += own_count(c) * c.size;
    return width;
  }

  // [n,T',width].
  Tensor message(Tape& tape, int64_t width, DType type) const {
    return communication_buffer(tape, {size(), ranks_.sequences() * ranks_.held(), width}, type,
                                "context.parts");
  }
  // As ContextRanks::parts().
  Tensor parts(const Tensor& message) const {
    return message.view({size() * ranks_.sequences(), ranks_.held(), 1, message.size(2)});
  }
  void exchange(Tape& tape, const Tensor& sent, const Tensor& received,
                std::string_view call) const {
    const std::vector<int64_t> rows(static_cast<size_t>(size()), 1);
    ranks_.group().all_to_all(sent, received, rows, rows, tape.stream(), call).wait(tape.stream());
  }
  // Sum of the columns [n,T',width] over the ranks [first, first + count).
  static Tensor sum(Tape& tape, const Tensor& columns, int first, int count) {
    const std::array<int64_t, 3> strides = {columns.stride(1), columns.stride(0), 1};
    const Tensor out =
        tape.empty({columns.size(1), columns.size(2)}, columns.dtype(), "context.sum");
    tape.kernels().sum_rows(
        {.x = columns.slice(0, first, count)
                  .as_strided({columns.size(1), count, columns.size(2)}, strides),
         .index = {},
         .out = out},
        tape.stream());
    return out;
  }

  ContextRanks ranks_;
};

// Hands states and the tokens before runs from rank to rank. The runs of rank r are chunks r and
// 2 n - 1 - r of the sequences (TokenLayout): what follows its first run is on rank r + 1, what
// follows its second on rank r - 1; the last rank has both chunks in the middle.
class RunRanks {
 public:
  RunRanks(const ContextRanks& ranks, bool passes) : ranks_(ranks), passes_(passes) {}

  const ExchangedTokens& tokens() const { return ranks_.tokens(); }

  // The last `count` tokens of each run are sent to where the next run is.
  Tensor tokens_before(Tape& tape, const Tensor& x, int64_t count) const {
    const Tensor last = x.slice(1, x.size(1) - count, count);
    const Shape shape = {x.size(0), count, x.size(2)};
    const Tensor before = tape.empty(shape, x.dtype(), "context.before");
    if (is_first()) tape.kernels().fill({.out = before, .value = 0}, tape.stream());
    const Neighbours received =
        exchanged(tape, of_run(last, 1), of_run(last, 0), "context, inputs before runs");
    put(tape, received.previous, of_run(before, 0));
    put(tape, received.next, of_run(before, 1));
    if (is_last()) put(tape, of_run(last, 0), of_run(before, 1));
    return before;
  }

  void give_back(Tape& tape, const Tensor& dbefore, const Tensor& dx) const {
    const int64_t count = dbefore.size(1);
    const Tensor last = dx.slice(1, dx.size(1) - count, count);
    const Neighbours received = exchanged(tape, of_run(dbefore, 0), of_run(dbefore, 1),
                                          "context, gradients of inputs before runs");
    add(tape, received.next, of_run(last, 0));
    add(tape, received.previous, of_run(last, 1));
    if (is_last()) add(tape, of_run(dbefore, 1), of_run(last, 0));
  }

  Tensor handed_on(Tape& tape, const Tensor& state, const Tensor& decay, bool gradient) const {
    const Tensor before = tape.empty(state.shape(), state.dtype(), "context.states");
    passes_ ? pass(tape, state, decay, gradient, before)
            : add_up(tape, state, decay, gradient, before);
    return before;
  }

 private:
  // Messages from the neighbouring ranks; undefined: there is none.
  struct Neighbours {
    Tensor previous, next;
  };
  bool is_first() const { return ranks_.rank() == 0; }
  bool is_last() const { return ranks_.rank() == ranks_.size() - 1; }
  // Run 0 or 1 of each sequence, of a tensor with rows [R,...].
  static Tensor of_run(const Tensor& x, int64_t run) {
    std::vector<int64_t> sizes, strides;
    for (int d = 0; d < x.rank(); ++d) {
      sizes.push_back(d == 0 ? x.size(0) / 2 : x.size(d));
      strides.push_back(d == 0 ? 2 * x.stride(0) : x.stride(d));
    }
    return x.slice(0, run, x.size(0) - run)
        .as_strided(Shape(std::span<const int64_t>(sizes)), strides);
  }
  static void put(Tape& tape, const Tensor& x, const Tensor& out) {
    if (x.defined()) tape.kernels().copy({.x = x, .out = out}, tape.stream());
  }
  // sum += x, [B,count,C].
  static void add(Tape& tape, const Tensor& x, const Tensor& sum) {
    for (int64_t s = 0; x.defined() && s < sum.size(0); ++s) {
      const Tensor of_sequence = sum.select(0, s);
      tape.kernels().add({.a = of_sequence,
                          .b = contiguous(tape, x.select(0, s), "context.before"),
                          .out = of_sequence},
                         tape.stream());
    }
  }

  // One call that sends to the neighbours and receives from them tensors of one shape. Every rank
  // has buffers for two neighbours, so that all need as much memory.
  Neighbours exchanged(Tape& tape, const Tensor& to_previous, const Tensor& to_next,
                       std::string_view call) const {
    const int64_t size = to_next.elements();
    const auto buffer = [&] {
      return communication_buffer(tape, {2, size}, to_next.dtype(), "context.neighbours");
    };
    const Tensor out = buffer(), in = buffer();
    std::vector<int64_t> counts(static_cast<size_t>(ranks_.size()));
    Neighbours received;
    int64_t row = 0;
    for (const auto& [sent, to, rank] :
         {std::tuple{&to_previous, &received.previous, ranks_.rank() - 1},
          {&to_next, &received.next, ranks_.rank() + 1}}) {
      if (rank < 0 || rank == ranks_.size()) continue;
      put(tape, *sent, out.select(0, row).view(sent->shape()));
      *to = in.select(0, row++).view(sent->shape());
      counts[static_cast<size_t>(rank)] = 1;
    }
    ranks_.group()
        .all_to_all(out.slice(0, 0, row), in.slice(0, 0, row), counts, counts, tape.stream(), call)
        .wait(tape.stream());
    return received;
  }

  // next = decay * before + state, for states [B,H,P,N] and decays [B,H]; before: undefined: 0.
  static Tensor advanced(Tape& tape, const Tensor& before, const Tensor& state,
                         const Tensor& decay) {
    const Tensor next = contiguous(tape, state, "context.state");
    if (!before.defined()) return next;
    const int64_t rows = state.size(0) * state.size(1), size = state.size(2) * state.size(3);
    const Tensor scaled = communication_buffer(tape, {rows, size}, state.dtype(), "context.state");
    tape.kernels().scale_rows({.x = before.view({rows, size}),
                               .factors = contiguous(tape, decay, "context.decay").view({rows}),
                               .out = scaled},
                              tape.stream());
    tape.kernels().add({.a = scaled, .b = next.view({rows, size}), .out = scaled}, tape.stream());
    return scaled.view(state.shape());
  }

  // From rank to rank: through the first runs onward to the last rank, and back through the second
  // ones; gradients the other way round. The first rank begins with 0, in as much memory as the
  // others need for what they receive.
  void pass(Tape& tape, const Tensor& state, const Tensor& decay, bool gradient,
            const Tensor& before) const {
    const std::string_view call = gradient ? "context, gradients of states" : "context, states";
    const int rank = ranks_.rank();
    Tensor passing;
    for (const bool outward : {true, false}) {
      const int64_t run = outward == gradient ? 1 : 0;
      const Tensor of_state = of_run(state, run);
      const int from = outward ? rank - 1 : rank + 1, next = outward ? rank + 1 : rank - 1;
      if (from < ranks_.size())
        passing = communication_buffer(tape, of_state.shape(), state.dtype(), "context.state");
      if (from < 0) tape.kernels().fill({.out = passing, .value = 0}, tape.stream());
      else if (from < ranks_.size())
        ranks_.group().recv(passing, from, tape.stream(), call).wait(tape.stream());
      put(tape, passing, of_run(before, run));
      if (!outward && is_first()) return;  // nothing follows
      passing = advanced(tape, passing, of_state, of_run(decay, run));
      if (next < ranks_.size())
        ranks_.group().send(passing, next, tape.stream(), call).wait(tape.stream());
    }
  }

  // From the states and decays of all ranks.
  void add_up(Tape& tape, const Tensor& state, const Tensor& decay, bool gradient,
              const Tensor& before) const {
    const std::string_view call =
        gradient ? "context, gradients of all states" : "context, all states";
    const auto gathered = [&](const Tensor& x) {
      std::vector<int64_t> sizes = {ranks_.size()};
      for (int d = 0; d < x.rank(); ++d) sizes.push_back(x.size(d));
      const Tensor all = communication_buffer(tape, Shape(std::span<const int64_t>(sizes)),
                                              x.dtype(), "context.states");
      ranks_.group().all_gather(x, all, tape.stream(), call).wait(tape.stream());
      return all;
    };
    const Tensor states = gathered(state), decays = gathered(decay);
    const int chunks = 2 * ranks_.size();
    Tensor passing;
    for (int i = 0; i < chunks; ++i) {
      const int chunk = gradient ? chunks - 1 - i : i;
      const bool second = chunk >= ranks_.size();
      const int rank = second ? chunks - 1 - chunk : chunk;
      const int64_t run = second ? 1 : 0;
      if (rank == ranks_.rank()) {
        const Tensor to = of_run(before, run);
        if (passing.defined()) put(tape, passing, to);
        else clear(tape, to);
      }
      passing = advanced(tape, passing, of_run(states.select(0, rank), run),
                         of_run(decays.select(0, rank), run));
    }
  }
  static void clear(Tape& tape, const Tensor& run) {
    for (int64_t s = 0; s < run.size(0); ++s)
      tape.kernels().fill({.out = run.select(0, s), .value = 0}, tape.stream());
  }

  ContextRanks ranks_;
  bool passes_;
};

// Tensor-parallel ranks that share groups: rank r has columns of group r / sharing.
class GroupRanks {
 public:
  GroupRanks(comm::Group& group, int sharing) : group_(&group), sharing_(sharing) {}

  Tensor whole(Tape& tape, const Tensor& parts) const {
    const int64_t rows = parts.size(0), width = parts.size(1) / 2;
    const Tensor all = communication_buffer(tape, {group_->size(), rows, 2 * width}, parts.dtype(),
                                            "state_space.groups");
    group_->all_gather(parts, all, tape.stream(), "state space, groups").wait(tape.stream());
    const Tensor out = tape.empty({rows, 2 * width * sharing_}, parts.dtype(), "state_space.group");
    for_each_piece(width, [&](int rank, int64_t from, int64_t to) {
      tape.kernels().copy(
          {.x = all.select(0, rank).slice(1, from, width), .out = out.slice(1, to, width)},
          tape.stream());
    });
    return out;
  }

  Tensor part(Tape& tape, const Tensor& dwhole) const {
    const int64_t rows = dwhole.size(0), width = dwhole.size(1) / (2 * sharing_);
    const Tensor all = communication_buffer(tape, {group_->size(), rows, 2 * width}, dwhole.dtype(),
                                            "state_space.dgroups");
    if (sharing_ < group_->size()) tape.kernels().fill({.out = all, .value = 0}, tape.stream());
    for_each_piece(width, [&](int rank, int64_t from, int64_t to) {
      tape.kernels().copy(
          {.x = dwhole.slice(1, to, width), .out = all.select(0, rank).slice(1, from, width)},
          tape.stream());
    });
    const Tensor own = tape.empty({rows, 2 * width}, dwhole.dtype(), "state_space.dgroup");
    group_
        ->reduce_scatter(all, own, comm::Reduce::sum, tape.stream(),
                         "state space, gradients of groups")
        .wait(tape.stream());
    return own;
  }

  // The sums of each group are a row of [groups,T].
  void add_up(Tape& tape, const Tensor& sums) const {
    const int groups = group_->size() / sharing_;
    if (groups == 1) return sum_in_place(tape, sums, *group_, "state space, norm");
    const Tensor all =
        communication_buffer(tape, {groups, sums.size(0)}, sums.dtype(), "state_space.sums");
    const Tensor own = all.select(0, group_->rank() / sharing_).view(sums.shape());
    tape.kernels().fill({.out = all, .value = 0}, tape.stream());
    tape.kernels().copy({.x = sums, .out = own}, tape.stream());
    sum_in_place(tape, all, *group_, "state space, norm");
    tape.kernels().copy({.x = own, .out = sums}, tape.stream());
  }

 private:
  // Calls f(rank, column of its part, column of the group) for b and c of each rank of the group.
  template <class F>
  void for_each_piece(int64_t width, F f) const {
    const int first = group_->rank() / sharing_ * sharing_;
    for (int piece = 0; piece < sharing_; ++piece)
      for (const int64_t matrix : {0, 1})
        f(first + piece, matrix * width, (matrix * sharing_ + piece) * width);
  }

  comm::Group* group_;
  int sharing_;
};

class Exchange final : public ops::StateSpaceExchange {
 public:
  std::optional<HeadRanks> heads;
  std::optional<RunRanks> run;
  std::optional<GroupRanks> groups;

  int head_ranks() const override { return heads ? heads->size() : 1; }
  int head_rank() const override { return heads ? heads->rank() : 0; }
  Tensor to_heads(const Tensor& rows, std::span<const Columns> columns, Tape& tape) const override {
    return heads->to_heads(tape, rows, columns);
  }
  Tensor to_tokens(const Tensor& rows, std::span<const Columns> columns,
                   Tape& tape) const override {
    return heads->to_tokens(tape, rows, columns);
  }
  Tensor whole_starts() const override { return heads->starts(); }
  int64_t runs() const override { return run ? 2 : 1; }
  Tensor run_starts() const override { return run->tokens().run_starts; }
  Tensor extended_starts() const override { return run->tokens().extended_starts; }
  int64_t halo() const override { return kRunHalo; }
  Tensor tokens_before(const Tensor& x, int64_t count, Tape& tape) const override {
    return run->tokens_before(tape, x, count);
  }
  void give_back(const Tensor& dbefore, const Tensor& dx, Tape& tape) const override {
    run->give_back(tape, dbefore, dx);
  }
  Tensor handed_on(const Tensor& state, const Tensor& decay, bool gradient,
                   Tape& tape) const override {
    return run->handed_on(tape, state, decay, gradient);
  }
  Tensor whole_group(const Tensor& parts, Tape& tape) const override {
    return groups->whole(tape, parts);
  }
  Tensor part_of_group(const Tensor& dwhole, Tape& tape) const override {
    return groups->part(tape, dwhole);
  }
  void add_up(const Tensor& sums, Tape& tape) const override { groups->add_up(tape, sums); }
};

}  // namespace

std::shared_ptr<const ops::StateSpaceExchange> state_space_exchange(
    const ops::StateSpaceShape& shape, int64_t conv_width, const ContextTokens& tokens,
    const ContextParallel& context, const TensorParallel& tensor) {
  const bool whole = alone(context.group);
  if (whole && shape.sharing == 1) return nullptr;
  auto exchange = std::make_shared<Exchange>();
  if (shape.sharing > 1) exchange->groups.emplace(*tensor.group, static_cast<int>(shape.sharing));
  if (whole) return exchange;
  const bool levels = context.exchange == ContextExchange::a2a_p2p;
  if (levels) exchange->heads.emplace(ContextRanks(*context.inner, nullptr, tokens.inner));
  else if (context.exchange == ContextExchange::a2a)
    exchange->heads.emplace(ContextRanks(*context.group, nullptr, tokens));
  if (context.exchange == ContextExchange::a2a) return exchange;
  const ContextRanks ring = levels ? ContextRanks(*context.ring, nullptr, tokens.ring)
                                   : ContextRanks(*context.group, nullptr, tokens);
  MG_CHECK(
      ring.held() / 2 >= conv_width - 1,
      "{} tokens of a sequence leave {} for each of the 2 x {} runs of --context-parallel-size "
      "and --cp-comm-type {}, and the convolution of a state space reads {} before each; "
      "use longer sequences (--seq-length), fewer ranks, or a2a",
      ring.length(), ring.held() / 2, ring.size(), name(context.exchange), conv_width - 1);
  MG_ASSERT(!tokens.all_segment_starts.defined() || ring.tokens().run_starts.defined());
  exchange->run.emplace(ring, context.exchange != ContextExchange::all_gather);
  return exchange;
}

}  // namespace megatron::parallel
