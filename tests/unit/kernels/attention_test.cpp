#include "kernels/cpu/attention/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "amx_emulator.h"
#include "base/divide.h"
#include "base/error.h"
#include "base/philox.h"

namespace megatron::kernels::cpu {
namespace {

struct Problem {
  int64_t batch = 1, queries = 1, keys = 1, heads = 1, kv_heads = 1, width = 8;
  bool causal = true, positions = false;
  float dropout = 0;
  int64_t document = 0;  // length of the documents that confine attention; 0: not confined
  int64_t window = 0;
};

// Tensors of one attention call, whose heads are not adjacent in memory, and its gradients by fp64
// loops.
class Attention {
 public:
  Attention(const Problem& setup, DType type, int threads = 2, uint64_t seed = 1)
      : setup_(setup), type_(type), runtime_({DeviceKind::cpu, 0}, threads), random_(seed) {
    const auto& s = setup_;
    const Shape by_query{s.batch, s.queries, s.heads, s.width},
        by_key{s.batch, s.keys, s.kv_heads, s.width};
    f_.q = normal(by_query);
    f_.k = normal(by_key);
    f_.v = normal(by_key);
    f_.out = normal(by_query);
    f_.lse = Tensor::empty(arena(), {s.batch, s.heads, s.queries}, DType::f32, "test");
    f_.causal = s.causal;
    f_.window = s.window;
    f_.scale = 1 / std::sqrt(static_cast<float>(s.width));
    if (s.positions) make_positions();
    if (s.document > 0) {
      f_.window_start = Tensor::empty(arena(), {s.batch, s.queries}, DType::i32, "test");
      for (int64_t i = 0; i < s.batch * s.queries; ++i)
        f_.window_start.data<int32_t>()[i] =
            static_cast<int32_t>(i % s.queries / s.document * s.document);
    }
    if (s.document > 0 && !s.causal) {
      f_.window_end = Tensor::empty(arena(), {s.batch, s.queries}, DType::i32, "test");
      for (int64_t i = 0; i < s.batch * s.queries; ++i)
        f_.window_end.data<int32_t>()[i] =
            f_.window_start.data<int32_t>()[i] + static_cast<int32_t>(s.document) - 1;
    }
    if (s.dropout > 0) {
      f_.dropout = {.p = s.dropout, .seed = 11, .stream = 0x123456789abcdefull, .rows = {}};
      f_.dropout.rows.sample_ids = Tensor::empty(arena(), {s.batch}, DType::i64, "test");
      for (int64_t b = 0; b < s.batch; ++b)
        f_.dropout.rows.sample_ids.data<int64_t>()[b] = (int64_t{3} << 32) + 5 * b + 1;
    }
    dout_ = normal(by_query);
    dq_ = normal(by_query);
    dk_ = normal(by_key);
    dv_ = normal(by_key);
  }

  AttentionArgs& forward() { return f_; }
  Stream& stream() { return runtime_.stream(); }
  AttentionBackwardArgs backward() const {
    return {.q = f_.q,
            .k = f_.k,
            .v = f_.v,
            .out = f_.out,
            .lse = f_.lse,
            .dout = dout_,
            .q_positions = f_.q_positions,
            .k_positions = f_.k_positions,
            .window_start = f_.window_start,
            .window_end = f_.window_end,
            .causal = f_.causal,
            .scale = f_.scale,
            .window = f_.window,
            .dropout = f_.dropout,
            .dq = dq_,
            .dk = dk_,
            .dv = dv_};
  }

  struct Result {
    std::vector<double> out, lse, dq, dk, dv;
  };
  Result run() {
    attention(f_, stream());
    attention_backward(backward(), stream());
    return {to_doubles(f_.out), to_doubles(f_.lse), to_doubles(dq_), to_doubles(dk_),
            to_doubles(dv_)};
  }
  Result naive() const;

 private:
  Arena& arena() { return runtime_.arena(MemoryClass::activations); }
  Tensor normal(Shape shape) {
    Shape wide = shape;
    wide.set(3, shape[3] + 3);
    Tensor t = Tensor::empty(arena(), wide, type_, "test");
    std::normal_distribution<double> distribution;
    std::vector<double> values(static_cast<size_t>(t.elements()));
    for (double& v : values) v = distribution(random_);
    copy_from(t, std::span<const double>(values));
    return t.slice(3, 0, shape[3]);
  }
  // Two documents in one sequence, the second's keys before the first's; the first queries see
  // nothing.
  void make_positions() {
    const auto& s = setup_;
    f_.q_positions = Tensor::empty(arena(), {s.batch, s.queries}, DType::i32, "test");
    f_.k_positions = Tensor::empty(arena(), {s.batch, s.keys}, DType::i32, "test");
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t i = 0; i < s.queries; ++i)
        f_.q_positions.data<int32_t>()[b * s.queries + i] = static_cast<int32_t>(2 * i + b - 2);
      for (int64_t j = 0; j < s.keys; ++j)
        f_.k_positions.data<int32_t>()[b * s.keys + j] =
            static_cast<int32_t>((j + s.keys / 2) % s.keys);
    }
  }
  double keep(int64_t b, int64_t n, int64_t query, int64_t key) const {
    const auto& m = f_.dropout;
    if (m.p == 0) return 1;
    const auto sample = static_cast<uint64_t>(m.rows.sample_ids.data<int64_t>()[b]);
    const uint64_t philox_key =
        m.seed * 0x9E3779B97F4A7C15ull ^ mix_stream(m.stream, static_cast<uint64_t>(n));
    const auto word =
        philox({static_cast<uint32_t>(key / 4), static_cast<uint32_t>(query),
                static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32)},
               {static_cast<uint32_t>(philox_key),
                static_cast<uint32_t>(philox_key >> 32)})[static_cast<size_t>(key % 4)];
    return word >= static_cast<double>(m.p) * 0x1p32 ? 1 / (1 - static_cast<double>(m.p)) : 0;
  }

  Problem setup_;
  DType type_;
  Runtime runtime_;
  std::mt19937_64 random_;
  AttentionArgs f_;
  Tensor dout_, dq_, dk_, dv_;
};

Attention::Result Attention::naive() const {
  const auto& s = setup_;
  const auto q = to_doubles(f_.q), k = to_doubles(f_.k), v = to_doubles(f_.v),
             dout = to_doubles(dout_);
  Result r{
      std::vector<double>(q.size()), std::vector<double>(static_cast<size_t>(f_.lse.elements())),
      std::vector<double>(q.size()), std::vector<double>(k.size()), std::vector<double>(k.size())};
  const auto dot = [&](const double* a, const double* b) {
    double sum = 0;
    for (int64_t d = 0; d < s.width; ++d) sum += a[d] * b[d];
    return sum;
  };
  std::vector<double> p(static_cast<size_t>(s.keys)), dp(p.size());
  for (int64_t row = 0; row < s.batch * s.heads * s.queries; ++row) {
    const int64_t b = row / (s.heads * s.queries), n = row / s.queries % s.heads,
                  i = row % s.queries;
    const size_t qr = static_cast<size_t>(((b * s.queries + i) * s.heads + n) * s.width);
    const auto kr = [&](int64_t j) {
      return static_cast<size_t>(((b * s.keys + j) * s.kv_heads + n / (s.heads / s.kv_heads)) *
                                 s.width);
    };
    const auto query_at = [&] {
      return s.positions ? f_.q_positions.data<int32_t>()[b * s.queries + i] : i;
    };
    const auto key_at = [&](int64_t j) {
      return s.positions ? f_.k_positions.data<int32_t>()[b * s.keys + j] : j;
    };
    double top = -INFINITY, sum = 0, delta = 0;
    for (int64_t j = 0; j < s.keys; ++j) {
      const int64_t distance = query_at() - key_at(j), at = b * s.queries + i;
      const bool seen =
          (!s.causal || distance >= 0) && (s.window == 0 || std::abs(distance) < s.window) &&
          (s.document == 0 || key_at(j) >= f_.window_start.data<int32_t>()[at]) &&
          (s.document == 0 || s.causal || key_at(j) <= f_.window_end.data<int32_t>()[at]);
      p[static_cast<size_t>(j)] = seen ? f_.scale * dot(&q[qr], &k[kr(j)]) : -INFINITY;
      top = std::max(top, p[static_cast<size_t>(j)]);
    }
    r.lse[static_cast<size_t>(row)] = -INFINITY;
    if (top == -INFINITY) continue;
    for (double& x : p) sum += x = std::exp(x - top);
    r.lse[static_cast<size_t>(row)] = top + std::log(sum);
    for (int64_t j = 0; j < s.keys; ++j) {
      const size_t at = static_cast<size_t>(j);
      const double kept = keep(b, n, query_at(), key_at(j));
      p[at] /= sum;
      dp[at] = kept * dot(&dout[qr], &v[kr(j)]);
      delta += p[at] * dp[at];
      for (size_t d = 0; d < static_cast<size_t>(s.width); ++d) {
        r.out[qr + d] += kept * p[at] * v[kr(j) + d];
        r.dv[kr(j) + d] += kept * p[at] * dout[qr + d];
      }
    }
    for (int64_t j = 0; j < s.keys; ++j) {
      const double ds = f_.scale * p[static_cast<size_t>(j)] * (dp[static_cast<size_t>(j)] - delta);
      for (size_t d = 0; d < static_cast<size_t>(s.width); ++d) {
        r.dq[qr + d] += ds * k[kr(j) + d];
        r.dk[kr(j) + d] += ds * q[qr + d];
      }
    }
  }
  return r;
}

void expect_close(const std::vector<double>& got, const std::vector<double>& want, double tolerance,
                  const std::string& what) {
  double square = 1e-300, worst = 0;
  for (const double w : want)
    square += std::isinf(w) ? 0 : w * w / static_cast<double>(want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    const double error = got[i] == want[i]
                             ? 0
                             : std::abs(got[i] - want[i]) / (std::sqrt(square) + std::abs(want[i]));
    worst = std::isnan(error) ? INFINITY : std::max(worst, error);
  }
  EXPECT_LE(worst, tolerance) << what;
}

// bf16 gradients include the rounding of the stored output, through dout . out.
void expect_close(const Attention::Result& got, const Attention::Result& want, DType type) {
  const std::string what(name(type));
  const bool f32 = type == DType::f32;
  expect_close(got.out, want.out, f32 ? 5e-6 : 0.01, what + " out");
  expect_close(got.lse, want.lse, f32 ? 1e-6 : 2e-3, what + " lse");
  expect_close(got.dq, want.dq, f32 ? 5e-6 : 0.05, what + " dq");
  expect_close(got.dk, want.dk, f32 ? 5e-6 : 0.05, what + " dk");
  expect_close(got.dv, want.dv, f32 ? 5e-6 : 0.05, what + " dv");
}

class AttentionShapes : public ::testing::TestWithParam<Problem> {};

TEST_P(AttentionShapes, MatchesPlainLoops) {
  for (const auto& [type, products] : types_and_ways()) {
    const UseBf16Products use(products);
    Attention attention(GetParam(), type);
    const auto want = attention.naive();
    expect_close(attention.run(), want, type);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, AttentionShapes,
    ::testing::Values(
        Problem{},
        Problem{.batch = 2, .queries = 33, .keys = 33, .heads = 2, .kv_heads = 2, .width = 16},
        Problem{.batch = 1, .queries = 200, .keys = 200, .heads = 2, .kv_heads = 1, .width = 64},
        Problem{.batch = 2,
                .queries = 70,
                .keys = 300,
                .heads = 6,
                .kv_heads = 2,
                .width = 40,
                .causal = false},
        Problem{.batch = 1, .queries = 131, .keys = 129, .heads = 3, .kv_heads = 3, .width = 7},
        Problem{.batch = 2,
                .queries = 90,
                .keys = 170,
                .heads = 4,
                .kv_heads = 2,
                .width = 33,
                .positions = true},
        Problem{.batch = 2,
                .queries = 100,
                .keys = 140,
                .heads = 4,
                .kv_heads = 1,
                .width = 24,
                .causal = false,
                .dropout = 0.25f},
        Problem{.batch = 2,
                .queries = 65,
                .keys = 65,
                .heads = 2,
                .kv_heads = 2,
                .width = 16,
                .dropout = 0.5f},
        Problem{.batch = 2,
                .queries = 60,
                .keys = 150,
                .heads = 2,
                .kv_heads = 1,
                .width = 16,
                .positions = true,
                .dropout = 0.1f},
        Problem{.batch = 3,
                .queries = 1,
                .keys = 260,
                .heads = 8,
                .kv_heads = 2,
                .width = 128,
                .causal = false},
        Problem{.batch = 1, .queries = 3, .keys = 0, .heads = 2, .kv_heads = 2, .width = 8},
        Problem{.batch = 2,
                .queries = 330,
                .keys = 330,
                .heads = 2,
                .kv_heads = 1,
                .width = 24,
                .dropout = 0.1f,
                .document = 97},
        Problem{.batch = 1,
                .queries = 200,
                .keys = 200,
                .heads = 3,
                .kv_heads = 3,
                .width = 16,
                .document = 3},
        Problem{.batch = 1,
                .queries = 90,
                .keys = 300,
                .heads = 2,
                .kv_heads = 2,
                .width = 16,
                .causal = false,
                .document = 64},
        Problem{.batch = 2,
                .queries = 90,
                .keys = 170,
                .heads = 4,
                .kv_heads = 2,
                .width = 33,
                .positions = true,
                .document = 40},
        Problem{.batch = 2,
                .queries = 330,
                .keys = 330,
                .heads = 4,
                .kv_heads = 2,
                .width = 24,
                .causal = false,
                .dropout = 0.1f,
                .document = 97},
        Problem{.batch = 1,
                .queries = 200,
                .keys = 200,
                .heads = 2,
                .kv_heads = 1,
                .width = 16,
                .causal = false,
                .window = 40},
        Problem{.batch = 1,
                .queries = 3,
                .keys = 260,
                .heads = 2,
                .kv_heads = 1,
                .width = 16,
                .causal = false,
                .window = 140},
        Problem{.batch = 2,
                .queries = 90,
                .keys = 170,
                .heads = 4,
                .kv_heads = 2,
                .width = 33,
                .causal = false,
                .positions = true,
                .document = 40,
                .window = 25}));

void expect_same_bits(const Attention::Result& a, const Attention::Result& b) {
  EXPECT_EQ(a.out, b.out);
  EXPECT_EQ(a.lse, b.lse);
  EXPECT_EQ(a.dq, b.dq);
  EXPECT_EQ(a.dk, b.dk);
  EXPECT_EQ(a.dv, b.dv);
}

TEST(Attention, GivesTheSameBitsForAnyNumberOfThreads) {
  for (const int64_t document : {0, 50}) {
    const Problem setup{.batch = 2,
                        .queries = 150,
                        .keys = 150,
                        .heads = 4,
                        .kv_heads = 2,
                        .width = 32,
                        .dropout = 0.2f,
                        .document = document};
    for (const auto& [type, products] : types_and_ways()) {
      const UseBf16Products use(products);
      const auto one = Attention(setup, type, 1).run();
      for (const int threads : {2, 3}) expect_same_bits(Attention(setup, type, threads).run(), one);
    }
  }
}

TEST(Attention, OneDocumentThatHoldsAllGivesTheBitsOfNone) {
  Problem setup{.batch = 2,
                .queries = 300,
                .keys = 300,
                .heads = 4,
                .kv_heads = 2,
                .width = 32,
                .dropout = 0.2f};
  for (const auto& [type, products] : types_and_ways()) {
    const UseBf16Products use(products);
    setup.document = 0;
    const auto none = Attention(setup, type).run();
    setup.document = 300;
    expect_same_bits(Attention(setup, type).run(), none);
  }
}

// In every panel that rows [first, first + count) of 400 do not see, one key is moved out of all
// queries' sight, so that no panel is skipped. For these rows it makes no difference.
void expect_bits_without_skipping(const Problem& setup, int64_t first, int64_t count, DType type) {
  Attention skipped(setup, type), kept(setup, type);
  Runtime runtime({DeviceKind::cpu, 0}, 1);
  Arena& arena = runtime.arena(MemoryClass::activations);
  AttentionArgs& args = kept.forward();
  args.q_positions = Tensor::empty(arena, {1, 400}, DType::i32, "test");
  args.k_positions = Tensor::empty(arena, {1, 400}, DType::i32, "test");
  for (int32_t i = 0; i < 400; ++i) {
    const bool seen = i >= first / 32 * 32 && i < round_up(first + count, int64_t{32});
    args.q_positions.data<int32_t>()[i] = i;
    args.k_positions.data<int32_t>()[i] = i % 32 != 31 || seen ? i : i < first ? INT32_MAX - 1 : -1;
  }
  const auto want = skipped.run(), got = kept.run();
  const auto own = [&](const std::vector<double>& values) {
    const auto row = std::ssize(values) / 400;
    return std::vector<double>(values.begin() + first * row,
                               values.begin() + (first + count) * row);
  };
  EXPECT_EQ(own(got.out), own(want.out));
  EXPECT_EQ(own(got.dq), own(want.dq));
  EXPECT_EQ(own(got.dk), own(want.dk));
  EXPECT_EQ(own(got.dv), own(want.dv));
}

TEST(Attention, SkippedKeysWouldHaveAddedNothing) {
  Problem setup{.batch = 1,
                .queries = 400,
                .keys = 400,
                .heads = 2,
                .kv_heads = 1,
                .width = 32,
                .document = 130};
  for (const auto& [type, products] : types_and_ways()) {
    const UseBf16Products use(products);
    setup.causal = true;
    expect_bits_without_skipping(setup, 260, 140, type);
    setup.causal = false;
    for (const int64_t first : {0, 130, 260})
      expect_bits_without_skipping(setup, first, std::min<int64_t>(130, 400 - first), type);
  }
}

// The last queries alone, with their positions, give the same bits as among all queries: decoding
// equals training. Few rows use another code path than many (kernels/cpu/products/few_rows.h).
void expect_bits_of_last_queries(const Problem& setup, DType type) {
  const int64_t keys = setup.keys;
  Attention whole(setup, type);
  AttentionArgs all = whole.forward();
  attention(all, whole.stream());
  for (const int64_t count : {keys - 1, keys / 2, int64_t{3}, int64_t{1}}) {
    const int64_t first = keys - count;
    Runtime runtime({DeviceKind::cpu, 0}, 2);
    Arena& arena = runtime.arena(MemoryClass::activations);
    AttentionArgs part = all;
    part.q = all.q.slice(1, first, count);
    part.out = Tensor::empty(arena, part.q.shape(), type, "test");
    part.lse = Tensor::empty(arena, {1, setup.heads, count}, DType::f32, "test");
    part.q_positions = Tensor::empty(arena, {1, count}, DType::i32, "test");
    part.k_positions = Tensor::empty(arena, {1, keys}, DType::i32, "test");
    for (int64_t i = 0; i < keys; ++i)
      part.k_positions.data<int32_t>()[i] = static_cast<int32_t>(i);
    for (int64_t i = first; i < keys; ++i)
      part.q_positions.data<int32_t>()[i - first] = static_cast<int32_t>(i);
    attention(part, runtime.stream());
    EXPECT_EQ(to_doubles(part.out), to_doubles(all.out.slice(1, first, count)))
        << name(type) << " " << str(bf16_products()) << ", last " << count << " of " << keys
        << ", width " << setup.width;
  }
}

TEST(Attention, GivesAQueryTheSameBitsWhereverItStands) {
  const Problem setups[] = {
      {.batch = 1, .queries = 180, .keys = 180, .heads = 4, .kv_heads = 2, .width = 32},
      {.batch = 1, .queries = 259, .keys = 259, .heads = 2, .kv_heads = 2, .width = 64},
      {.batch = 1, .queries = 131, .keys = 131, .heads = 8, .kv_heads = 1, .width = 72},
      {.batch = 1, .queries = 40, .keys = 40, .heads = 5, .kv_heads = 1, .width = 19},
      {.batch = 1,
       .queries = 150,
       .keys = 150,
       .heads = 4,
       .kv_heads = 1,
       .width = 64,
       .dropout = 0.3f},
      {.batch = 1, .queries = 70, .keys = 70, .heads = 3, .kv_heads = 1, .width = 128},
      {.batch = 1,
       .queries = 150,
       .keys = 150,
       .heads = 4,
       .kv_heads = 1,
       .width = 64,
       .causal = false,
       .window = 40}};
  for (const Problem& setup : setups) {
    for (const auto& [type, products] : types_and_ways()) {
      const UseBf16Products use(products);
      expect_bits_of_last_queries(setup, type);
    }
  }
}

// A row that sees no key of a panel, with visible keys on both sides of it, gives zero, as among
// many rows.
TEST(Attention, ARowBetweenAllKeysSeesNone) {
  for (const auto& [type, products] : types_and_ways()) {
    const UseBf16Products use(products);
    for (const int64_t queries : {1, 20}) {
      const Problem setup{.batch = 1, .queries = queries, .keys = 40, .width = 32};
      Attention problem(setup, type);
      Runtime runtime({DeviceKind::cpu, 0}, 1);
      Arena& arena = runtime.arena(MemoryClass::activations);
      AttentionArgs& args = problem.forward();
      args.q_positions = Tensor::empty(arena, {1, queries}, DType::i32, "test");
      args.window_start = Tensor::empty(arena, {1, queries}, DType::i32, "test");
      args.k_positions = Tensor::empty(arena, {1, 40}, DType::i32, "test");
      std::fill_n(args.q_positions.data<int32_t>(), queries, 50);
      std::fill_n(args.window_start.data<int32_t>(), queries, 40);
      for (int64_t j = 0; j < 40; ++j) args.k_positions.data<int32_t>()[j] = j % 2 == 0 ? 0 : 100;
      attention(args, problem.stream());
      for (const double x : to_doubles(args.out)) EXPECT_EQ(x, 0.0) << name(type) << " " << queries;
    }
  }
}

// Keys in two parts, each with the log-sum-exp over all keys: the gradients add up to the gradient
// of the whole.
TEST(Attention, TakesTheLogSumExpOfAllKeysInBackward) {
  const Problem setup{.batch = 1,
                      .queries = 80,
                      .keys = 160,
                      .heads = 2,
                      .kv_heads = 1,
                      .width = 16,
                      .causal = false};
  Attention whole(setup, DType::f32);
  const auto want = whole.run();
  std::vector<double> dq(want.dq.size()), dk, dv;
  for (const int64_t begin : {0, 60}) {
    const int64_t size = begin == 0 ? 60 : 100;
    Attention fresh(setup, DType::f32);
    AttentionBackwardArgs part = fresh.backward();
    AttentionArgs& all = fresh.forward();
    attention(all, fresh.stream());
    for (Tensor* t : {&part.k, &part.v, &part.dk, &part.dv}) *t = t->slice(1, begin, size);
    attention_backward(part, fresh.stream());
    const auto part_dq = to_doubles(part.dq), part_dk = to_doubles(part.dk),
               part_dv = to_doubles(part.dv);
    for (size_t i = 0; i < dq.size(); ++i) dq[i] += part_dq[i];
    dk.insert(dk.end(), part_dk.begin(), part_dk.end());
    dv.insert(dv.end(), part_dv.begin(), part_dv.end());
  }
  expect_close(dq, want.dq, 2e-6, "dq");
  expect_close(dk, want.dk, 2e-6, "dk");
  expect_close(dv, want.dv, 2e-6, "dv");
}

TEST(Attention, RefusesF64ByName) {
  Runtime runtime({DeviceKind::cpu, 0}, 1);
  Arena& arena = runtime.arena(MemoryClass::activations);
  const auto make = [&] { return Tensor::empty(arena, {1, 2, 1, 4}, DType::f64, "test"); };
  AttentionArgs args{.q = make(),
                     .k = make(),
                     .v = make(),
                     .q_positions = {},
                     .k_positions = {},
                     .dropout = {},
                     .out = make(),
                     .lse = {}};
  args.lse = Tensor::empty(arena, {1, 1, 2}, DType::f64, "test");
  try {
    attention(args, runtime.stream());
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("reference"), std::string::npos) << error.what();
  }
}

TEST(Attention, CarriesANanToTheOutput) {
  Attention a({.batch = 1, .queries = 4, .keys = 4, .heads = 1, .kv_heads = 1, .width = 8},
              DType::f32);
  a.forward().q.data<float>()[0] = NAN;
  const auto got = a.run();
  EXPECT_TRUE(std::isnan(got.out[0]) && std::isnan(got.lse[0]) && std::isnan(got.dk[0]));
}

}  // namespace
}  // namespace megatron::kernels::cpu
