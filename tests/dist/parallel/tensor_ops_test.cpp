// Compares every tensor-parallel op on several ranks with one rank.
#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/traffic.h"
#include "dist/parallel/divided.h"
#include "ops/linear.h"
#include "ops/linear_cross_entropy.h"
#include "parallel/linear.h"
#include "parallel/vocabulary.h"

namespace megatron::parallel {
namespace {

constexpr int64_t kTokens = 12;  // divided by 2, 3 and 4

void column(Bench& b, bool biased) {
  constexpr int64_t kIn = 5, kOut = 24;
  Tape tape(b.runtime);
  Parameter w, bias;
  const Slice rows = b.share(kOut);
  const Weight weight = b.weight(w, b.rows("w", {kOut, kIn}, rows));
  const Weight offset = biased ? b.weight(bias, b.rows("b", {kOut}, rows)) : Weight();
  const Var x = tape.leaf(b.tokens("x", {kTokens, kIn}));
  const Var y = column_linear(tape, x, weight, offset, b.tp);
  tape.set_gradient(y, b.columns("dy", {kTokens, kOut}, rows));
  b.backward(tape);
  b.give("y", y.value, How::columns);
  b.give("dx", tape.gradient(x), b.by_tokens());
  b.give_gradient("dw", w, How::rows);
  if (biased) b.give_gradient("db", bias, How::rows);
}

void row(Bench& b, bool biased) {
  constexpr int64_t kIn = 24, kOut = 7;
  Tape tape(b.runtime);
  Parameter w, bias;
  const Slice columns = b.share(kIn);
  const Weight weight = b.weight(w, b.columns("w", {kOut, kIn}, columns));
  const Weight offset = biased ? b.weight(bias, b.drawn("b", {kOut})) : Weight();
  const Var x = tape.leaf(b.columns("x", {kTokens, kIn}, columns));
  const Var y = row_linear(tape, x, weight, offset, b.tp);
  tape.set_gradient(y, b.tokens("dy", {kTokens, kOut}));
  b.backward(tape);
  b.give("y", y.value, b.by_tokens());
  b.give("dx", tape.gradient(x), How::columns);
  b.give_gradient("dw", w, How::columns);
  if (biased) b.give_gradient("db", bias, b.tp.divides_tokens() ? How::sum : How::same);
}

TEST(TensorOps, ColumnLinear) {
  for (const Setting& s : settings()) {
    for (const bool biased : {false, true}) expect_whole(s, [&](Bench& b) { column(b, biased); });
  }
}

TEST(TensorOps, RowLinear) {
  for (const Setting& s : settings()) {
    for (const bool biased : {false, true}) expect_whole(s, [&](Bench& b) { row(b, biased); });
  }
}

// A frozen weight gets no gradient, but its input does. An input without gradient costs nothing.
TEST(TensorOps, ColumnLinearOfAFrozenWeightAndOfAConstant) {
  for (const Setting& s : settings({2})) {
    expect_whole(s, [](Bench& b) {
      for (const bool constant : {false, true}) {
        Tape tape(b.runtime);
        Parameter w;
        const Weight weight = b.weight(w, b.rows("w", {8, 3}, b.share(8)));
        w.trainable = constant;
        const Tensor x = b.tokens("x", {kTokens, 3});
        const Var in = constant ? Var(x) : tape.leaf(x);
        const Var y = column_linear(tape, in, weight, {}, b.tp);
        tape.set_gradient(y, b.columns("dy", {kTokens, 8}, b.share(8)));
        b.backward(tape);
        if (!constant) b.give("dx", tape.gradient(in), b.by_tokens());
        if (constant) b.give_gradient("dw", w, How::rows);
      }
    });
  }
}

// Two key heads, each held by two ranks, or one key head held by all ranks. The single rank holds
// them whole.
void kv_heads(Bench& b, int64_t heads) {
  constexpr int64_t kSize = 12, kQueries = 24;
  Tape tape(b.runtime);
  const int64_t k = heads * kSize;
  const Tensor q = b.drawn("q", {kTokens, kQueries}), keys = b.drawn("k", {kTokens, k}),
               values = b.drawn("v", {kTokens, k});
  const Slice own_q = b.share(kQueries), own = b.share(k);
  Tensor qkv = testing::make(b.runtime, {kTokens, own_q.size + 2 * own.size}, b.type);
  const auto put = [&](const Tensor& from, const Slice& s, int64_t to) {
    const Tensor out = qkv.slice(1, to, s.size);
    tape.kernels().copy({.x = from.slice(1, s.global_begin, s.size), .out = out}, tape.stream());
  };
  put(q, own_q, 0);
  put(keys, own, own_q.size);
  put(values, own, own_q.size + own.size);
  const Var x = tape.leaf(qkv);
  const Var out = gather_key_head(tape, x, own_q.size, k, kSize, b.tp);
  // One rank holds all heads. With several ranks, each uses one head, and its gradient covers only
  // its own use. The single rank's gradient is the sum over these.
  const int ranks = b.tp.size();
  const int64_t head = ranks == 1 ? 0 : b.tp.rank() * heads / ranks;
  Tensor dy = testing::make(b.runtime, out.value.shape(), b.type);
  const auto set_columns = [&](const Tensor& from, int64_t begin, int64_t size, int64_t to) {
    tape.kernels().copy({.x = from.slice(1, begin, size), .out = dy.slice(1, to, size)},
                        tape.stream());
  };
  const Tensor dq = b.drawn("dq", {kTokens, kQueries}), dk = b.drawn("dk", {kTokens, k}),
               dv = b.drawn("dv", {kTokens, k});
  set_columns(dq, own_q.global_begin, own_q.size, 0);
  const int64_t size = ranks == 1 ? k : kSize;
  set_columns(dk, head * kSize, size, own_q.size);
  set_columns(dv, head * kSize, size, own_q.size + size);
  if (ranks > 1) {
    ASSERT_EQ(out.value.size(1), own_q.size + 2 * kSize);
    const auto expect = [&](const Tensor& whole, int64_t begin, int64_t to) {
      EXPECT_EQ(to_doubles(out.value.slice(1, to, kSize)),
                to_doubles(whole.slice(1, begin, kSize)));
    };
    expect(keys, head * kSize, own_q.size);
    expect(values, head * kSize, own_q.size + kSize);
  }
  tape.set_gradient(out, dy);
  b.backward(tape);
  const Tensor dx = tape.gradient(x);
  // All ranks / heads ranks that hold a head give the same gradient.
  const double sharing = ranks == 1 ? 1 : static_cast<double>(ranks / heads);
  const auto give = [&](const char* name, int64_t begin, int64_t columns, double factor) {
    std::vector<double> values_of = to_doubles(dx.slice(1, begin, columns));
    for (double& v : values_of) v /= factor;
    b.results[name] = {How::columns, {kTokens, columns}, values_of};
  };
  give("dq", 0, own_q.size, 1);
  give("dk", own_q.size, own.size, sharing);
  give("dv", own_q.size + own.size, own.size, sharing);
}

TEST(TensorOps, GatherKeyHead) {
  for (const Setting& s : settings()) expect_whole(s, [](Bench& b) { kv_heads(b, 1); });
  for (const Setting& s : settings({4})) expect_whole(s, [](Bench& b) { kv_heads(b, 2); });
}

TEST(TensorOps, KeyHeadsThatCannotBeDividedAreRefused) {
  testing::each_rank(2, [](comm::Group& world, Runtime& runtime) {
    Tape tape(runtime);
    const TensorParallel tp{.group = &world};
    const Tensor qkv = testing::make(runtime, {2, 4 + 9}, DType::f64);
    EXPECT_THROW(gather_key_head(tape, qkv, 4, 9, 3, tp), Error);
  });
}

// Ids cover every slice of rows, and some rows are never used.
std::vector<int32_t> ids_below(int64_t vocabulary) {
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < kTokens; ++t)
    ids.push_back(static_cast<int32_t>(t * 7 % std::max<int64_t>(1, vocabulary - 1)));
  ids[3] = static_cast<int32_t>(vocabulary - 1);
  return ids;
}

// With 5 rows on 4 ranks the last rank has none. With 4 rows on 3 ranks the last has fewer.
constexpr int64_t kVocabularies[] = {4, 5, 10, 24};

TEST(TensorOps, VocabularyEmbedding) {
  for (const Setting& s : settings()) {
    for (const int64_t v : kVocabularies) {
      expect_whole(s, [v](Bench& b) {
        Tape tape(b.runtime);
        Parameter w;
        const Slice rows = b.share(v);
        const Weight table = b.weight(w, b.rows("table", {v, 6}, rows));
        const Var y =
            vocabulary_embedding(tape, b.integers(ids_below(v)), table, rows.global_begin, b.tp);
        tape.set_gradient(y, b.tokens("dy", {kTokens, 6}));
        b.backward(tape);
        b.give("y", y.value, b.by_tokens());
        b.give_gradient("dtable", w, How::rows);
      });
    }
  }
}

TEST(TensorOps, VocabularyCrossEntropy) {
  for (const Setting& s : settings()) {
    for (const int64_t v : kVocabularies) {
      expect_whole(s, [v](Bench& b) {
        Tape tape(b.runtime);
        Parameter w;
        const Slice rows = b.share(v);
        const Weight weight = b.weight(w, b.rows("w", {v, 6}, rows));
        std::vector<int32_t> labels = ids_below(v);
        std::vector<double> weights(kTokens, 0.25);
        labels[5] = -100;
        weights[5] = 0;
        const Var x = tape.leaf(b.tokens("x", {kTokens, 6}));
        const Tensor loss =
            vocabulary_cross_entropy(tape, x, weight, rows.global_begin, b.integers(labels),
                                     testing::make(b.runtime, {kTokens}, b.sums(), weights), b.tp);
        b.backward(tape);
        b.give("loss", loss, How::same);
        b.give("dx", tape.gradient(x), b.by_tokens());
        b.give_gradient("dw", w, How::rows);

        Tape plain(b.runtime, Tape::Mode::infer);
        const Tensor again = vocabulary_cross_entropy(
            plain, Var(x.value), weight, rows.global_begin, b.integers(labels),
            testing::make(b.runtime, {kTokens}, b.sums(), weights), b.tp);
        EXPECT_EQ(to_doubles(again), to_doubles(loss));
      });
    }
  }
}

// There are more tokens than in a chunk. All ranks cut alike, including the one with the smaller
// share.
TEST(TensorOps, VocabularyCrossEntropyInChunks) {
  for (const bool sequence : {false, true}) {
    expect_whole({.ranks = 4, .sequence = sequence, .device = DeviceKind::cpu}, [](Bench& b) {
      constexpr int64_t kMany = 4200, kV = 5, kH = 4;
      Tape tape(b.runtime);
      Parameter w;
      const Slice rows = b.share(kV);
      const Weight weight = b.weight(w, b.rows("w", {kV, kH}, rows));
      std::vector<int32_t> labels;
      for (int32_t t = 0; t < kMany; ++t) labels.push_back(t % kV);
      const Var x = tape.leaf(b.tokens("x", {kMany, kH}));
      const Tensor loss = vocabulary_cross_entropy(
          tape, x, weight, rows.global_begin, b.integers(labels),
          testing::make(b.runtime, {kMany}, b.sums(), std::vector<double>(kMany, 1.0 / kMany)),
          b.tp);
      b.backward(tape);
      b.give("loss", loss, How::same);
      b.give("dx", tape.gradient(x), b.by_tokens());
      b.give_gradient("dw", w, How::rows);
    });
  }
}

TEST(TensorOps, VocabularyLinearAndLogits) {
  for (const Setting& s : settings()) {
    for (const int64_t v : kVocabularies) {
      expect_whole(s, [v](Bench& b) {
        Tape tape(b.runtime);
        Parameter w;
        const Weight weight = b.weight(w, b.rows("w", {v, 6}, b.share(v)));
        const Var x = tape.leaf(b.tokens("x", {kTokens, 6}));
        const Var y = vocabulary_linear(tape, x, weight, v, b.tp);
        tape.set_gradient(y, b.drawn("dy", {kTokens, v}));
        b.backward(tape);
        b.give("y", y.value, How::same);
        b.give("dx", tape.gradient(x), b.by_tokens());
        b.give_gradient("dw", w, How::rows);
        const Tensor logits = vocabulary_logits(tape, x.value, weight, v, b.tp);
        b.give("logits", logits, How::same);
        if (b.type != DType::bf16) {
          EXPECT_EQ(to_doubles(logits), to_doubles(y.value));
        }
      });
    }
  }
}

TEST(TensorOps, BackwardInPartsHasTheSameBits) {
  for (const bool sequence : {false, true}) {
    for (const bool async : {false, true}) {
      for (const auto& body : {std::function<void(Bench&)>([](Bench& b) { column(b, true); }),
                               std::function<void(Bench&)>([](Bench& b) { row(b, true); })}) {
        const Setting whole{2, sequence, async, DeviceKind::cpu, false},
            parts{2, sequence, async, DeviceKind::cpu, true};
        const std::vector<Results> a = results_of(whole, body), b = results_of(parts, body);
        for (size_t rank = 0; rank < a.size(); ++rank) {
          for (const auto& [name, result] : a[rank])
            EXPECT_EQ(result.values, b[rank].at(name).values) << name;
        }
      }
    }
  }
}

TEST(TensorOps, OneRankHasTheBitsOfTheOps) {
  const auto run = [](bool parallel) {
    return results_of({.ranks = 1, .device = DeviceKind::cpu}, [&](Bench& b) {
      Tape tape(b.runtime);
      Parameter w, bias;
      const Weight weight = b.weight(w, b.drawn("w", {24, 24})),
                   offset = b.weight(bias, b.drawn("b", {24}));
      const Var x = tape.leaf(b.drawn("x", {kTokens, 24}));
      const TensorParallel none{};
      const Var y = parallel ? row_linear(tape, x, weight, offset, none)
                             : ops::linear(tape, x, weight, offset);
      tape.set_gradient(y, b.drawn("dy", {kTokens, 24}));
      b.backward(tape);
      b.give("y", y.value, How::same);
      b.give("dx", tape.gradient(x), How::same);
      b.give_gradient("dw", w, How::same);
      b.give_gradient("db", bias, How::same);
    })[0];
  };
  const Results a = run(true), b = run(false);
  for (const auto& [name, result] : a) EXPECT_EQ(result.values, b.at(name).values) << name;
}

TEST(TensorOps, Shares) {
  const auto sizes = [](int64_t total, int ranks) {
    std::vector<int64_t> list;
    int64_t next = 0;
    for (int r = 0; r < ranks; ++r) {
      const Slice s = share_of(total, ranks, r);
      EXPECT_EQ(s.global_begin, next);
      next += s.size;
      list.push_back(s.size);
    }
    EXPECT_EQ(next, total);
    return list;
  };
  EXPECT_EQ(sizes(8, 4), (std::vector<int64_t>{2, 2, 2, 2}));
  EXPECT_EQ(sizes(10, 4), (std::vector<int64_t>{3, 3, 3, 1}));
  EXPECT_EQ(sizes(5, 4), (std::vector<int64_t>{2, 2, 1, 0}));
  EXPECT_EQ(sizes(1, 3), (std::vector<int64_t>{1, 0, 0}));
  EXPECT_EQ(sizes(0, 2), (std::vector<int64_t>{0, 0}));
  testing::each_rank(2, [](comm::Group& world, Runtime&) {
    const TensorParallel divided{.group = &world, .sequence = true}, whole{.group = &world};
    EXPECT_EQ(divided.tokens(6).global_begin, world.rank() * 3);
    EXPECT_EQ(divided.tokens(6).size, 3);
    EXPECT_EQ(whole.tokens(7).size, 7);
    try {
      divided.tokens(7);
      FAIL();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("7 tokens"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("2 ranks"), std::string::npos) << error.what();
    }
  });
}

}  // namespace
}  // namespace megatron::parallel
