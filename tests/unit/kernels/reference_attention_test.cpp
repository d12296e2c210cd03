// Compares the reference's attention and dropout with definitions and numerical derivatives, in
// fp64.
#include <limits>
#include <span>

#include "base/error.h"
#include "support.h"

namespace megatron::kernels {
namespace {

class ReferenceAttention : public ReferenceTest {
 protected:
  AttentionArgs args(int64_t batch, int64_t queries, int64_t keys, int64_t heads, int64_t kv_heads,
                     int64_t width) {
    return {.q = random("q", {batch, queries, heads, width}),
            .k = random("k", {batch, keys, kv_heads, width}),
            .v = random("v", {batch, keys, kv_heads, width}),
            .scale = 0.5,
            .out = make({batch, queries, heads, width}),
            .lse = make({batch, heads, queries})};
  }
  void expect_derivative(const AttentionArgs& a) {
    kernels().attention(a, stream());
    const Tensor out = make(a.out.shape()), lse = make(a.lse.shape()),
                 dout = random("dout", a.out.shape());
    kernels().copy({a.out, out}, stream());
    kernels().copy({a.lse, lse}, stream());
    const Tensor dq = make(a.q.shape()), dk = make(a.k.shape()), dv = make(a.v.shape());
    const Tensor dbias = a.bias.defined() ? make(a.bias.shape()) : Tensor();
    const Tensor dsinks = a.sinks.defined() ? make(a.sinks.shape()) : Tensor();
    kernels().attention_backward({.q = a.q,
                                  .k = a.k,
                                  .v = a.v,
                                  .out = out,
                                  .lse = lse,
                                  .dout = dout,
                                  .q_positions = a.q_positions,
                                  .k_positions = a.k_positions,
                                  .window_start = a.window_start,
                                  .window_end = a.window_end,
                                  .causal = a.causal,
                                  .scale = a.scale,
                                  .window = a.window,
                                  .chunk = a.chunk,
                                  .soft_cap = a.soft_cap,
                                  .sinks = a.sinks,
                                  .bias = a.bias,
                                  .dropout = a.dropout,
                                  .dq = dq,
                                  .dk = dk,
                                  .dv = dv,
                                  .dsinks = {.out = dsinks},
                                  .dbias = {.out = dbias}},
                                 stream());
    const auto loss = [&] {
      kernels().attention(a, stream());
      return dot(a.out, dout);
    };
    expect_gradient(a.q, dq, loss, "q");
    expect_gradient(a.k, dk, loss, "k");
    expect_gradient(a.v, dv, loss, "v");
    if (a.sinks.defined()) expect_gradient(a.sinks, dsinks, loss, "sinks");
    if (a.bias.defined()) expect_gradient(a.bias, dbias, loss, "bias");
  }
};

TEST_F(ReferenceAttention, IsItsDefinition) {
  for (const bool causal : {false, true}) {
    const int64_t t = 5, d = 3;
    AttentionArgs a = args(1, t, t, 2, 1, d);
    a.causal = causal;
    kernels().attention(a, stream());
    for (int64_t n = 0; n < 2; ++n) {
      const Tensor q = make({t, d}), k = a.k.view({t, d}), v = a.v.view({t, d});
      kernels().copy({a.q.as_strided({t, d}, std::array<int64_t, 2>{2 * d, 1}, n * d), q},
                     stream());
      const Tensor s = make({t, t}), out = make({t, d});
      kernels().gemm({.a = q, .b = k, .out = s, .transpose_b = true}, stream());
      std::vector<double> p = to_doubles(s), lse;
      for (int64_t i = 0; i < t; ++i) {
        const std::span row(p.data() + i * t, t);
        double sum = 0;
        for (int64_t j = 0; j < t; ++j)
          sum += row[j] = causal && j > i ? 0 : std::exp(a.scale * row[j]);
        for (double& value : row) value /= sum;
        lse.push_back(std::log(sum));
      }
      kernels().gemm({.a = of({t, t}, p), .b = v, .out = out}, stream());
      expect_near(out, to_doubles(a.out.slice(2, n, 1)), 1e-14);
      expect_near(a.lse.slice(1, n, 1), lse, 1e-14);
    }
  }
}

TEST_F(ReferenceAttention, BackwardIsTheDerivative) {
  expect_derivative(args(2, 4, 4, 4, 2, 3));
  AttentionArgs full = args(1, 3, 5, 2, 2, 2);
  full.causal = false;
  expect_derivative(full);
  AttentionArgs dropped = args(2, 4, 4, 2, 1, 2);
  dropped.dropout = {0.4f, 3, 9, of({2}, {5, 11}, DType::i64)};
  expect_derivative(dropped);
  AttentionArgs placed = args(1, 4, 3, 2, 1, 2);
  placed.q_positions = of({1, 4}, {9, 0, 4, 2}, DType::i32);
  placed.k_positions = of({1, 3}, {2, 9, 1}, DType::i32);
  expect_derivative(placed);
  AttentionArgs confined = args(2, 5, 5, 2, 1, 2);
  confined.window_start = of({2, 5}, {0, 0, 2, 2, 4, 0, 1, 2, 2, 2}, DType::i32);
  expect_derivative(confined);
  confined.dropout = {0.4f, 3, 9, of({2}, {5, 11}, DType::i64)};
  expect_derivative(confined);
  placed.window_start = of({1, 4}, {2, 0, 3, 2}, DType::i32);
  expect_derivative(placed);
  for (const int64_t bound : {1, 2, 3, 9}) {
    AttentionArgs bounded = args(1, 5, 5, 2, 1, 2);
    bounded.window = bound;
    expect_derivative(bounded);
    std::swap(bounded.window, bounded.chunk);
    expect_derivative(bounded);
  }
  confined.soft_cap = 0.8;
  expect_derivative(confined);
  placed.sinks = of({2}, {0.5, -1}, DType::f64);
  expect_derivative(placed);
  placed.soft_cap = 1.5;
  placed.window = 4;
  expect_derivative(placed);
  placed.causal = false;
  placed.window_end = of({1, 4}, {9, 0, 8, 1}, DType::i32);
  expect_derivative(placed);
  placed.bias = random("bias", {5, 2});
  expect_derivative(placed);
  confined.bias = random("bias", {3, 2});
  expect_derivative(confined);
}

// Queries of zero see the bias alone: the weight of a key follows from its distance.
TEST_F(ReferenceAttention, TheBiasIsThatOfTheClampedDistance) {
  const int64_t queries = 3, keys = 7, heads = 2, radius = 2;
  AttentionArgs a = args(1, queries, keys, heads, 1, 1);
  a.causal = false;
  kernels().fill({.out = a.q, .value = 0}, stream());
  a.q_positions = of({1, queries}, {0, 3, 8}, DType::i32);
  a.k_positions = of({1, keys}, {0, 1, 2, 3, 4, 5, 6}, DType::i32);
  a.bias = random("bias", {heads, 2 * radius + 1}).transpose(0, 1);
  kernels().attention(a, stream());
  const std::vector<double> bias = to_doubles(a.bias), v = to_doubles(a.v);
  std::vector<double> expected;
  for (const int64_t query : {0, 3, 8}) {
    for (int64_t n = 0; n < heads; ++n) {
      double sum = 0, all = 0;
      for (int64_t j = 0; j < keys; ++j) {
        const int64_t row = std::min<int64_t>(std::max<int64_t>(j - query, -2), 2) + radius;
        const double weight = std::exp(bias[static_cast<size_t>(row * heads + n)]);
        all += weight;
        sum += weight * v[static_cast<size_t>(j)];
      }
      expected.push_back(sum / all);
    }
  }
  expect_near(a.out, expected, 1e-14);
}

TEST_F(ReferenceAttention, RefusesABiasOfAnotherShape) {
  AttentionArgs a = args(1, 4, 4, 2, 1, 2);
  for (const Shape& shape : {Shape{4, 2}, Shape{3, 1}, Shape{3, 2, 1}}) {
    a.bias = make(shape);
    EXPECT_THROW(kernels().attention(a, stream()), InternalError) << shape.str();
  }
  a.bias = make({3, 2}, DType::f32);
  EXPECT_THROW(kernels().attention(a, stream()), InternalError) << "not as wide as the sums";
  AttentionBackwardArgs back{.q = a.q, .k = a.k, .v = a.v, .out = a.out, .lse = a.lse};
  back.dout = back.dq = a.q;
  back.dk = a.k;
  back.dv = a.v;
  back.dbias.out = make({3, 2});
  EXPECT_THROW(kernels().attention_backward(back, stream()), InternalError) << "no bias";
  back.bias = make({5, 2});
  EXPECT_THROW(kernels().attention_backward(back, stream()), InternalError) << "another radius";
}

TEST_F(ReferenceAttention, ABoundIsTheDocumentThatBeginsThere) {
  for (const bool windows : {true, false}) {
    AttentionArgs bounded = args(1, 8, 8, 2, 1, 3);
    (windows ? bounded.window : bounded.chunk) = 3;
    kernels().attention(bounded, stream());
    AttentionArgs confined = bounded;
    confined.window = confined.chunk = 0;
    const std::vector<double> begins = windows ? std::vector<double>{0, 0, 0, 1, 2, 3, 4, 5}
                                               : std::vector<double>{0, 0, 0, 3, 3, 3, 6, 6};
    confined.window_start = of({1, 8}, begins, DType::i32);
    confined.out = make(bounded.out.shape());
    confined.lse = make(bounded.lse.shape());
    kernels().attention(confined, stream());
    expect_near(bounded.out, to_doubles(confined.out), 0);
    expect_near(bounded.lse, to_doubles(confined.lse), 0);
  }
}

// Two-sided: |query - key| < window, and each query's document has an end.
TEST_F(ReferenceAttention, ATwoSidedWindowIsTheDocumentWithBothEnds) {
  AttentionArgs bounded = args(1, 8, 8, 2, 1, 3);
  bounded.causal = false;
  bounded.window = 3;
  kernels().attention(bounded, stream());
  AttentionArgs confined = bounded;
  confined.window = 0;
  confined.window_start = of({1, 8}, {0, 0, 0, 1, 2, 3, 4, 5}, DType::i32);
  confined.window_end = of({1, 8}, {2, 3, 4, 5, 6, 7, 7, 7}, DType::i32);
  confined.out = make(bounded.out.shape());
  confined.lse = make(bounded.lse.shape());
  kernels().attention(confined, stream());
  expect_near(bounded.out, to_doubles(confined.out), 0);
  expect_near(bounded.lse, to_doubles(confined.lse), 0);
}

// A sink is a key with value zero whose score is the sink.
TEST_F(ReferenceAttention, ASinkIsOneMoreKeyWithoutAValue) {
  AttentionArgs a = args(1, 3, 5, 1, 1, 2);
  a.causal = false;
  const Tensor q = random("q", {1, 3, 1, 2});
  for (int64_t i = 0; i < 3; ++i) q.data<double>()[2 * i] = 1;
  a.q = q;
  for (int64_t d = 0; d < 2; ++d) {
    a.k.data<double>()[8 + d] = d == 0 ? 0.8 : 0;
    a.v.data<double>()[8 + d] = 0;
  }
  kernels().attention(a, stream());
  AttentionArgs sunk = a;
  sunk.k = a.k.slice(1, 0, 4);
  sunk.v = a.v.slice(1, 0, 4);
  sunk.sinks = of({1}, {0.8 * a.scale}, DType::f64);
  sunk.out = make(a.out.shape());
  sunk.lse = make(a.lse.shape());
  kernels().attention(sunk, stream());
  expect_near(sunk.out, to_doubles(a.out), 1e-15);
  expect_near(sunk.lse, to_doubles(a.lse), 1e-15);
}

TEST_F(ReferenceAttention, QueryThatSeesNoKeyGivesItsSink) {
  AttentionArgs a = args(1, 1, 1, 1, 1, 3);
  a.q_positions = of({1, 1}, {0}, DType::i32);
  a.k_positions = of({1, 1}, {5}, DType::i32);
  a.sinks = of({1}, {-0.25}, DType::f64);
  kernels().attention(a, stream());
  EXPECT_EQ(to_doubles(a.lse)[0], -0.25);
  EXPECT_EQ(to_doubles(a.out)[0], 0);
}

TEST_F(ReferenceAttention, RefusesBoundsOfTheOtherKind) {
  AttentionArgs a = args(1, 4, 4, 2, 1, 2);
  a.causal = false;
  a.chunk = 2;
  EXPECT_THROW(kernels().attention(a, stream()), InternalError) << "chunks are causal";
  a = args(1, 4, 4, 2, 1, 2);
  a.window_end = of({1, 4}, {3, 3, 3, 3}, DType::i32);
  EXPECT_THROW(kernels().attention(a, stream()), InternalError) << "a causal mask has no end";
  a.causal = false;
  kernels().attention(a, stream());
}

// Each document of a packed sequence equals the document alone, causal or two-sided.
TEST_F(ReferenceAttention, ConfinedIsEachDocumentAlone) {
  const std::vector<int64_t> lengths = {3, 1, 4};
  for (const int64_t window : {0, 2}) {
    for (const bool causal : {true, false}) {
      AttentionArgs packed = args(1, 8, 8, 2, 1, 3);
      packed.causal = causal;
      packed.window = window;
      packed.window_start = of({1, 8}, {0, 0, 0, 3, 4, 4, 4, 4}, DType::i32);
      if (!causal) packed.window_end = of({1, 8}, {2, 2, 2, 3, 7, 7, 7, 7}, DType::i32);
      kernels().attention(packed, stream());
      int64_t begin = 0;
      for (const int64_t length : lengths) {
        AttentionArgs alone = packed;
        alone.window_start = alone.window_end = {};
        for (Tensor* t : {&alone.q, &alone.k, &alone.v}) *t = t->slice(1, begin, length);
        alone.out = make({1, length, 2, 3});
        alone.lse = make({1, 2, length});
        kernels().attention(alone, stream());
        expect_near(alone.out, to_doubles(packed.out.slice(1, begin, length)), 1e-15);
        expect_near(alone.lse, to_doubles(packed.lse.slice(2, begin, length)), 1e-15);
        begin += length;
      }
    }
  }
}

TEST_F(ReferenceAttention, RefusesBoundsOfAnotherShape) {
  AttentionArgs a = args(2, 4, 4, 2, 1, 2);
  a.window_start = of({2, 3}, {0, 0, 0, 0, 0, 0}, DType::i32);
  EXPECT_THROW(kernels().attention(a, stream()), InternalError);
  std::swap(a.window_start, a.window_end);
  a.causal = false;
  EXPECT_THROW(kernels().attention(a, stream()), InternalError);
}

TEST_F(ReferenceAttention, QueryThatSeesNoKeyGivesZero) {
  AttentionArgs a = args(1, 2, 2, 1, 1, 3);
  a.q_positions = of({1, 2}, {0, 7}, DType::i32);
  a.k_positions = of({1, 2}, {5, 6}, DType::i32);
  kernels().attention(a, stream());
  EXPECT_EQ(to_doubles(a.lse)[0], -std::numeric_limits<double>::infinity());
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(to_doubles(a.out)[i], 0);
  EXPECT_TRUE(std::isfinite(to_doubles(a.lse)[1]));
}

// Two halves of the keys, merged by their log-sum-exps, equal the whole. So do the gradients that
// use the log-sum-exp of the whole.
TEST_F(ReferenceAttention, PartsOfTheKeysMerge) {
  const int64_t t = 4, keys = 6;
  AttentionArgs a = args(1, t, keys, 1, 1, 2);
  a.q_positions = of({1, t}, {2, 3, 4, 5}, DType::i32);
  a.k_positions = of({1, keys}, {0, 1, 2, 3, 4, 5}, DType::i32);
  a.bias = random("bias", {5, 1});
  kernels().attention(a, stream());
  const std::vector<double> whole = to_doubles(a.out), whole_lse = to_doubles(a.lse);
  const Tensor dout = random("dout", a.out.shape()), dq = make(a.q.shape()), dk = make(a.k.shape()),
               dv = make(a.v.shape()), dbias = make(a.bias.shape()), dbias_sum = make({5, 1});
  kernels().attention_backward({.q = a.q,
                                .k = a.k,
                                .v = a.v,
                                .out = a.out,
                                .lse = a.lse,
                                .dout = dout,
                                .q_positions = a.q_positions,
                                .k_positions = a.k_positions,
                                .scale = a.scale,
                                .bias = a.bias,
                                .dq = dq,
                                .dk = dk,
                                .dv = dv,
                                .dbias = {.out = dbias}},
                               stream());
  std::vector<double> merged(whole.size()), dq_sum(whole.size()), dk_parts;
  for (const int64_t begin : {0, 3}) {
    AttentionArgs part = a;
    part.k = a.k.slice(1, begin, 3);
    part.v = a.v.slice(1, begin, 3);
    part.k_positions = a.k_positions.slice(1, begin, 3);
    part.out = make(a.out.shape());
    part.lse = make(a.lse.shape());
    kernels().attention(part, stream());
    const std::vector<double> out = to_doubles(part.out), lse = to_doubles(part.lse);
    for (size_t i = 0; i < merged.size(); ++i)
      merged[i] += std::exp(lse[i / 2] - whole_lse[i / 2]) * out[i];
    const Tensor part_dq = make(a.q.shape()), part_dk = make(part.k.shape()),
                 part_dv = make(part.v.shape());
    kernels().attention_backward({.q = a.q,
                                  .k = part.k,
                                  .v = part.v,
                                  .out = a.out,
                                  .lse = a.lse,
                                  .dout = dout,
                                  .q_positions = a.q_positions,
                                  .k_positions = part.k_positions,
                                  .scale = a.scale,
                                  .bias = a.bias,
                                  .dq = part_dq,
                                  .dk = part_dk,
                                  .dv = part_dv,
                                  .dbias = {.out = dbias_sum, .beta = begin == 0 ? 0.0f : 1.0f}},
                                 stream());
    const std::vector<double> d = to_doubles(part_dq);
    for (size_t i = 0; i < d.size(); ++i) dq_sum[i] += d[i];
    for (const double value : to_doubles(part_dk)) dk_parts.push_back(value);
  }
  for (size_t i = 0; i < merged.size(); ++i) EXPECT_NEAR(merged[i], whole[i], 1e-14);
  expect_near(dq, dq_sum, 1e-13);
  expect_near(dk, dk_parts, 1e-13);
  expect_near(dbias, to_doubles(dbias_sum), 1e-13);
}

class ReferenceDropout : public ReferenceTest {
 protected:
  std::vector<double> dropped(const Tensor& x, const std::vector<double>& samples, float p,
                              uint64_t seed = 5) {
    const Tensor out = make(x.shape());
    const auto batch = static_cast<int64_t>(samples.size());
    kernels().dropout({{p, seed, 17, of({batch}, samples, DType::i64)}, x, out}, stream());
    return to_doubles(out);
  }
};

TEST_F(ReferenceDropout, KeepsTheShareAskedForAndScalesIt) {
  const Tensor x = of({400, 250}, std::vector<double>(100000, 1));
  for (const float p : {0.1f, 0.5f, 0.9f}) {
    int64_t kept = 0;
    for (const double value : dropped(x, {3, 4}, p)) {
      if (value == 0) continue;
      ++kept;
      EXPECT_NEAR(value, 1 / (1 - static_cast<double>(p)), 1e-12);
    }
    // Five standard deviations of a binomial count.
    EXPECT_NEAR(static_cast<double>(kept) / 1e5, 1 - p, 5 * std::sqrt(p * (1 - p) / 1e5));
  }
}

TEST_F(ReferenceDropout, MaskIsTheDocumentedOne) {
  const Tensor x = of({2, 6}, std::vector<double>(12, 1));
  const int64_t sample = (int64_t{3} << 32) + 9;
  const std::vector<double> out = dropped(x, {static_cast<double>(sample)}, 0.5f, 5);
  const uint64_t key = 5 * 0x9E3779B97F4A7C15ull ^ 17;
  for (uint32_t t = 0; t < 2; ++t) {
    for (uint32_t c = 0; c < 6; ++c) {
      const PhiloxCounter words =
          philox({c / 4, t, 9, 3}, {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
      EXPECT_EQ(out[t * 6 + c] != 0, words[c % 4] >= 0x80000000u) << t << " " << c;
    }
  }
}

TEST_F(ReferenceDropout, MaskOfASampleDoesNotDependOnTheBatch) {
  const Tensor x = random("x", {3 * 5, 7});
  const std::vector<double> samples{8, 1, int64_t{1} << 40};
  const std::vector<double> whole = dropped(x, samples, 0.3f);
  std::vector<double> parts;
  for (int64_t b = 0; b < 3; ++b) {
    for (const double value :
         dropped(x.slice(0, 5 * b, 5), {samples[static_cast<size_t>(b)]}, 0.3f))
      parts.push_back(value);
  }
  EXPECT_EQ(whole, parts);
  EXPECT_NE(whole, dropped(x, {8, 1, 2}, 0.3f));
  EXPECT_NE(whole, dropped(x, samples, 0.3f, 6));
  EXPECT_EQ(to_doubles(x), dropped(x, samples, 0));
}

}  // namespace
}  // namespace megatron::kernels
