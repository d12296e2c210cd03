// Overlap of calls to a group with the products of a backward pass, checked by their order.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

#include "base/clock.h"
#include "comm/async.h"
#include "comm/delaying.h"
#include "comm/traffic.h"
#include "dist/parallel/divided.h"
#include "kernels/observer.h"
#include "parallel/context_attention.h"
#include "parallel/linear.h"
#include "parallel/vocabulary.h"

namespace megatron::parallel {
namespace {

using Lines = std::vector<std::string>;

// Records when a call begins and when it is waited for.
class WatchedGroup final : public comm::Group {
 public:
  WatchedGroup(comm::Group& group, Lines& lines) : group_(group), lines_(lines) {}
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  comm::Work make(comm::GroupCall call, Stream& s) override {
    return recorded(call.name, group_.make(call, s));
  }
  void barrier(std::string_view) override {}
  std::unique_ptr<comm::Group> split(int, int, int) override { return comm::single(); }

 private:
  class Waited final : public Event::State {
   public:
    Waited(std::string line, Lines& lines) : line_(std::move(line)), lines_(lines) {}
    bool reached() override { return false; }
    void wait() override { lines_.push_back(line_); }

   private:
    std::string line_;
    Lines& lines_;
  };

  comm::Work recorded(std::string_view call, comm::Work work) {
    lines_.push_back(fmt::format("begin {}", call));
    work.done = Event(std::make_shared<Waited>(fmt::format("wait {}", call), lines_));
    return work;
  }

  comm::Group& group_;
  Lines& lines_;
};

// Records products by their result, and the kernels of the loss and of attention.
class Products final : public kernels::Observer {
 public:
  explicit Products(Lines& lines) : lines_(lines) {}
  void after(const kernels::Call& call) override {
    if (call.kernel == "gemm")
      lines_.push_back(call.form == 2 ? "y" : call.form == 0 ? "dx" : "dw");
    if (call.kernel.starts_with("vocabulary")) lines_.emplace_back(call.kernel);
    if (!call.kernel.starts_with("attention")) return;
    const bool by_positions = std::ranges::any_of(
        call.operands, [](const kernels::Operand& o) { return o.name == "q_positions"; });
    lines_.push_back(std::string(call.kernel) + (by_positions ? " by positions" : ""));
  }

 private:
  Lines& lines_;
};

// Recorded lines of rank 0 of two ranks. `group` and `async` are watched.
template <class F>
Lines lines_of(bool sequence, bool async, F&& body) {
  Lines of_first;
  testing::each_rank(2, [&](comm::Group& world, Runtime& runtime) {
    Lines lines;
    const auto second = world.split(0, world.rank(), 2);
    WatchedGroup group(world, lines), other(*second, lines);
    Products products(lines);
    runtime.stream().watch(&products);
    const TensorParallel tp{&group, async ? &other : nullptr, sequence};
    Bench bench(runtime, tp, false);
    body(bench, lines);
    runtime.stream().watch(nullptr);
    if (world.rank() == 0) of_first = lines;
  });
  return of_first;
}

Lines column_lines(bool sequence, bool async, bool in_parts) {
  return lines_of(sequence, async, [&](Bench& b, Lines& lines) {
    Tape tape(b.runtime);
    Parameter w;
    const Weight weight = b.weight(w, b.rows("w", {8, 3}, b.share(8)));
    const Var x = tape.leaf(b.tokens("x", {6, 3}));
    const Var y = column_linear(tape, x, weight, {}, b.tp);
    tape.set_gradient(y, b.columns("dy", {6, 8}, b.share(8)));
    lines.clear();
    tape.backward(in_parts ? ::megatron::BackwardPart::input : ::megatron::BackwardPart::all);
    if (in_parts) {
      lines.emplace_back("weight part");
      tape.backward(::megatron::BackwardPart::weight);
    }
  });
}

const std::string kSum = "column_linear, gradient", kAgain = "column_linear, x again";

TEST(Overlap, TheSumOfDxRunsBesideTheWeightsGradient) {
  EXPECT_EQ(column_lines(false, true, false), (Lines{"dx", "begin " + kSum, "dw", "wait " + kSum}));
}

TEST(Overlap, XIsGatheredAgainBesideTheProductOfDx) {
  EXPECT_EQ(column_lines(true, true, false), (Lines{"begin " + kAgain, "dx", "begin " + kSum,
                                                    "wait " + kAgain, "dw", "wait " + kSum}));
}

TEST(Overlap, InPartsTheInputsPartWaits) {
  EXPECT_EQ(column_lines(false, true, true),
            (Lines{"dx", "begin " + kSum, "wait " + kSum, "weight part", "dw"}));
  EXPECT_EQ(column_lines(true, true, true),
            (Lines{"begin " + kAgain, "dx", "begin " + kSum, "wait " + kSum, "weight part",
                   "wait " + kAgain, "dw"}));
}

TEST(Overlap, WithoutASecondGroupEachCallIsWaitedForAtOnce) {
  EXPECT_EQ(column_lines(false, false, false),
            (Lines{"dx", "begin " + kSum, "wait " + kSum, "dw"}));
  EXPECT_EQ(column_lines(true, false, false).front(), "begin " + kAgain);
  EXPECT_EQ(column_lines(true, false, false)[1], "wait " + kAgain);
}

// One exchange per chunk. The sum of dx begins before the last chunk's gradient of the weight and
// is waited for in backward.
TEST(Overlap, LossExchangesOnceAChunk) {
  const Lines lines = lines_of(false, true, [](Bench& b, Lines& all) {
    constexpr int64_t kTokens = 4100;
    Tape tape(b.runtime);
    Parameter w;
    const Slice rows = b.share(3);
    const Weight weight = b.weight(w, b.rows("w", {3, 2}, rows));
    const Var x = tape.leaf(b.tokens("x", {kTokens, 2}));
    vocabulary_cross_entropy(
        tape, x, weight, rows.global_begin,
        b.integers(std::vector<int32_t>(static_cast<size_t>(kTokens), 2)),
        testing::make(b.runtime, {kTokens}, b.type, std::vector<double>(kTokens, 1)), b.tp);
    all.emplace_back("backward");
    tape.backward();
  });
  const std::string stats = "vocabulary_loss, stats", sum = "vocabulary_loss, gradient";
  const Lines loss{"y", "vocabulary_stats", "begin " + stats, "wait " + stats,
                   "vocabulary_cross_entropy"};
  Lines expected = loss;
  expected.insert(expected.end(), {"dx", "dw"});
  expected.insert(expected.end(), loss.begin(), loss.end());
  expected.insert(expected.end(), {"dx", "begin " + sum, "dw", "backward", "wait " + sum});
  EXPECT_EQ(lines, expected);
}

// Attention of ranks that pass keys and values around a ring, and its backward.
void attend_around(const ContextParallel& context, Runtime& runtime,
                   const std::function<void()>& before_backward) {
  const TokenLayout layout{1, 4 * context.group->size(), context.group->rank(),
                           context.group->size()};
  ContextTokens tokens;
  tokens.layout = layout;
  tokens.rank_indices = testing::make(runtime, {layout.length}, DType::i32);
  copy_from(tokens.rank_indices, std::span<const int32_t>(tokens_by_rank(layout)));
  Tape tape(runtime);
  const auto ones = [&](Shape shape) {
    return testing::make(runtime, shape, DType::f64,
                         std::vector<double>(static_cast<size_t>(shape.elements()), 1));
  };
  const auto heads = [&] { return tape.leaf(ones({1, layout.held(), 2, 8})); };
  const Var out =
      context_attention(tape, {heads(), heads(), heads(), {}}, {.scale = 0.5}, tokens, context);
  tape.set_gradient(out, ones(out.value.shape()));
  before_backward();
  tape.backward();
}

// Recorded lines of rank 0 of three ranks.
Lines ring_lines() {
  Lines of_first;
  testing::each_rank(3, [&](comm::Group& world, Runtime& runtime) {
    Lines lines;
    const auto second = world.split(0, world.rank(), world.size());
    WatchedGroup group(world, lines), other(*second, lines);
    Products kernels(lines);
    runtime.stream().watch(&kernels);
    attend_around({.group = &group, .async = &other}, runtime,
                  [&] { lines.emplace_back("backward"); });
    runtime.stream().watch(nullptr);
    if (world.rank() == 0) of_first = lines;
  });
  return of_first;
}

// The next block travels while attention reads this one, and so do the gradients of the block
// before. Backward attends to its own block last, while the last gradients travel. Attention to
// whole chunks of tokens needs no positions.
TEST(Overlap, BlocksOfTheRingTravelBesideAttention) {
  const auto keys = [](int block) {
    return fmt::format("context, keys and values, block {}", block);
  };
  const auto gradients = [](int block) {
    return fmt::format("context, gradients of keys and values, block {}", block);
  };
  const Lines forward{"begin " + keys(1), "attention", "wait " + keys(1),
                      "begin " + keys(2), "attention", "attention_merge",
                      "wait " + keys(2),  "attention", "attention_merge"};
  Lines expected = forward;
  const Lines backward{"backward",
                       "begin " + keys(1),
                       "wait " + keys(1),
                       "begin " + keys(2),
                       "attention_backward by positions",
                       "begin " + gradients(1),
                       "wait " + keys(2),
                       "attention_backward by positions",
                       "wait " + gradients(1),
                       "begin " + gradients(2),
                       "attention_backward by positions",
                       "wait " + gradients(2)};
  expected.insert(expected.end(), backward.begin(), backward.end());
  EXPECT_EQ(ring_lines(), expected);
}

// Attention takes time without using its core.
class SlowAttention final : public kernels::Observer {
 public:
  void after(const kernels::Call& call) override {
    if (call.kernel == "attention") std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (call.kernel == "attention_backward")
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
};

double seconds_of_ring(bool overlaps) {
  double seconds = 0;
  testing::each_rank(4, [&](comm::Group& world, Runtime& runtime) {
    comm::Delaying delaying(world, std::chrono::milliseconds(5));
    auto other = delaying.split(0, world.rank(), world.size());
    if (overlaps) other = comm::async(std::move(other));
    SlowAttention slow;
    runtime.stream().watch(&slow);
    world.barrier("begin");
    const double begin = now_seconds();
    attend_around({.group = &delaying, .async = other.get()}, runtime, [] {});
    world.barrier("end");
    if (world.rank() == 0) seconds = now_seconds() - begin;
    runtime.stream().watch(nullptr);
  });
  return seconds;
}

// A call takes as long as attention to a block. By the order above, 65 ms of 105 remain: the first
// block of backward has nothing to travel beside. An attempt disturbed by other work on the machine
// proves nothing, so there are many attempts.
TEST(Overlap, MessagesOfTheRingCostLittle) {
  constexpr double kShare = 0.7;
  double best = 1;
  for (int attempt = 0; attempt < 12 && best >= kShare; ++attempt) {
    const double overlapped = seconds_of_ring(true), waited = seconds_of_ring(false);
    best = std::min(best, overlapped / waited);
    fmt::print("ring: {:.1f} ms overlapped with compute, {:.1f} ms without\n", 1e3 * overlapped,
               1e3 * waited);
  }
  EXPECT_LT(best, kShare);
}

struct Traffic final : comm::TrafficListener {
  Lines calls;
  double bytes = 0;
  void communicated(const comm::Traffic& t) override {
    calls.push_back(fmt::format("{} {}: {}", t.collective, t.call, t.bytes));
    bytes += comm::sent_bytes(t);
  }
};

// A plan on meta, with ranks that do not exist. Checks what a column and a row product send of T x
// H elements: with divided tokens an all-gather and a reduce-scatter in each direction, and x once
// more; otherwise two all-reduces.
TEST(Overlap, VolumesOnMeta) {
  constexpr int64_t kTokens = 64, kHidden = 32;
  for (const bool sequence : {false, true}) {
    Runtime runtime({DeviceKind::meta, 0}, 1);
    Traffic traffic;
    const auto simulated = comm::simulated(1, 4);
    const auto group = comm::observed(*simulated, traffic);
    const TensorParallel tp{.group = group.get(), .sequence = sequence};
    const auto make = [&](Shape shape) { return testing::make(runtime, shape, DType::bf16); };
    Parameter up{.name = "up", .value = make({32, kHidden})},
        down{.name = "down", .value = make({kHidden, 32})},
        bias{.name = "bias", .value = make({kHidden})};
    for (Parameter* p : {&up, &down, &bias})
      p->uses[0].grad = testing::make(runtime, p->value.shape(), DType::f32);
    Tape tape(runtime);
    const Var x = tape.leaf(make({tp.tokens(kTokens).size, kHidden}));
    const Var y = row_linear(tape, column_linear(tape, x, up, {}, tp), down, bias, tp);
    EXPECT_EQ(y.value.shape(), x.value.shape());
    tape.set_gradient(y, make(y.value.shape()));
    tape.backward();
    const double share = kTokens * kHidden * 2 * 3 / 4.0;  // (n - 1) / n of the bytes
    EXPECT_EQ(traffic.bytes, (sequence ? 5 : 4) * share);
    EXPECT_EQ(traffic.calls.size(), sequence ? 5u : 2u);
    EXPECT_EQ(runtime.arena(MemoryClass::communication).in_use(), 0);
  }
}

// Bytes that a rank of a divided loss sends, on meta.
Lines loss_calls(int ranks, int rank, int64_t tokens, int64_t vocabulary) {
  Runtime runtime({DeviceKind::meta, 0}, 1);
  Traffic traffic;
  const auto simulated = comm::simulated(rank, ranks);
  const auto group = comm::observed(*simulated, traffic);
  const TensorParallel tp{.group = group.get(), .sequence = true};
  const auto make = [&](Shape shape, DType type) { return testing::make(runtime, shape, type); };
  const Slice rows = share_of(vocabulary, ranks, rank);
  Parameter w{.name = "w", .value = make({rows.size, 8}, DType::bf16)};
  w.uses[0].grad = make({rows.size, 8}, DType::f32);
  Tape tape(runtime);
  const Var x = tape.leaf(make({tokens / ranks, 8}, DType::bf16));
  vocabulary_cross_entropy(tape, x, w, rows.global_begin, make({tokens}, DType::i32),
                           make({tokens}, DType::f32), tp);
  tape.backward();
  EXPECT_EQ(tape.gradient(x).shape(), x.value.shape());
  return traffic.calls;
}

// The rows of a chunk follow from the largest share, also on ranks with a smaller share: two ranks
// have 8193 and 8192 of 16385 rows, for which chunks would have 4032 and 4096 tokens.
TEST(Overlap, EveryRankCutsTheLossAlike) {
  const Lines first = loss_calls(2, 0, 10000, 16385);
  EXPECT_EQ(first.size(), 5u);  // x, three chunks, dx
  EXPECT_EQ(first[1], fmt::format("all_gather vocabulary_loss, stats: {}", 4032 * 3 * 4 * 2));
  EXPECT_EQ(loss_calls(2, 1, 10000, 16385), first);
  for (int rank = 1; rank < 4; ++rank)
    EXPECT_EQ(loss_calls(4, rank, 5000, 5), loss_calls(4, 0, 5000, 5));
}

}  // namespace
}  // namespace megatron::parallel
