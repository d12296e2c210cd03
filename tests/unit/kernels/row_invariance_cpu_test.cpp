// An element has the same bits whether its row is computed alone, with a few others or within a
// training batch. Cached decoding therefore equals training bit for bit.
#include <span>

#include "amx_emulator.h"
#include "base/philox.h"
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/kernels.h"
#include "kernels/gemm_each.h"
#include "unit/kernels/cpu_maker.h"
#include "unit/kernels/instruction_sets.h"

namespace megatron::kernels::cpu {
namespace {

// Values in [-1, 1), cheap enough for matrices of real models.
Tensor uniform(Maker& maker, Shape shape, DType type, uint64_t seed) {
  Tensor t = maker.empty(shape, type);
  uint64_t state = seed;
  const auto next = [&] {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<float>(static_cast<int32_t>(state >> 40) - (1 << 23)) * 0x1p-23f;
  };
  for (int64_t i = 0; i < t.elements(); ++i) {
    if (type == DType::f32) {
      t.data<float>()[i] = next();
    } else {
      t.data<bf16>()[i] = bf16(next());
    }
  }
  return t;
}

bool same_rows(const Tensor& part, const Tensor& all, int64_t first) {
  return same_bits(part, all.slice(0, first, part.size(0)));
}

struct Kind {
  DType in, out;
  Bf16Products products;
};
std::vector<Kind> kinds() {
  std::vector<Kind> list = {{DType::f32, DType::f32, Bf16Products::widened}};
  for (const Bf16Products products : bf16_ways()) {
    list.push_back({DType::bf16, DType::bf16, products});
    if (products != Bf16Products::widened) list.push_back({DType::bf16, DType::f32, products});
  }
  return list;
}
std::string str(const Kind& kind) {
  return std::string(name(kind.in)) + " to " + std::string(name(kind.out)) + " " +
         str(kind.products);
}

struct Weight {
  int64_t inputs, outputs;
};
class ProductRows : public ::testing::TestWithParam<Weight> {};

TEST_P(ProductRows, DoNotDependOnTheirNumber) {
  const auto [inputs, outputs] = GetParam();
  for (const Kind& kind : kinds()) {
    const UseBf16Products use(kind.products);
    const int64_t rows =
        slow(kind.products) ? (outputs > 10000 ? 20 : 70) : (outputs > 10000 ? 70 : 300);
    Maker maker;
    GemmArgs all{.a = uniform(maker, {rows, inputs}, kind.in, 1),
                 .b = uniform(maker, {outputs, inputs}, kind.in, 2),
                 .out = maker.empty({rows, outputs}, kind.out),
                 .transpose_b = true,
                 .bias = uniform(maker, {outputs}, kind.in, 3)};
    gemm(all, maker.stream());
    int64_t first = 0;
    for (const int64_t count : {1, 2, 3, 5, 8, 9, 16, 17, 32, 40, 64, 100, 200}) {
      if (count > rows) break;
      first = (first + 37) % (rows - count + 1);
      GemmArgs part = all;
      part.a = all.a.slice(0, first, count);
      part.out = maker.empty({count, outputs}, kind.out);
      gemm(part, maker.stream());
      EXPECT_TRUE(same_rows(part.out, all.out, first)) << str(kind) << " rows " << count;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, ProductRows,
                         ::testing::Values(Weight{64, 64}, Weight{768, 96}, Weight{768, 2304},
                                           Weight{3072, 768}, Weight{48, 50257}, Weight{33, 81},
                                           Weight{11008, 100}),
                         [](const auto& info) {
                           return std::to_string(info.param.inputs) + "to" +
                                  std::to_string(info.param.outputs);
                         });

TEST(ProductRows, DoNotDependOnTheirNumberOnAnyInstructionSet) {
  for_each_target([](int64_t) {
    for (const Kind& kind : kinds()) {
      const UseBf16Products use(kind.products);
      Maker maker;
      GemmArgs all{.a = uniform(maker, {70, 701}, kind.in, 1),
                   .b = uniform(maker, {97, 701}, kind.in, 2),
                   .out = maker.empty({70, 97}, kind.out),
                   .transpose_b = true,
                   .bias = {}};
      gemm(all, maker.stream());
      for (int64_t count = 1; count < 35; ++count) {
        GemmArgs part = all;
        part.a = all.a.slice(0, count, count);
        part.out = maker.empty({count, 97}, kind.out);
        gemm(part, maker.stream());
        EXPECT_TRUE(same_rows(part.out, all.out, count)) << str(kind) << " rows " << count;
      }
    }
  });
}

// The products have one row or several, few inputs, an odd number of them or none, or no outputs;
// some are added to what is there, the others have a bias.
TEST(ProductRows, OfSeveralProductsAtOnceAreThoseOfEachAlone) {
  for_each_target([](int64_t) {
    for (const Kind& kind : kinds()) {
      if (kind.in != kind.out) continue;
      const UseBf16Products use(kind.products);
      Maker maker(3);
      std::vector<GemmArgs> calls;
      std::vector<Tensor> expected;
      uint64_t seed = 0;
      for (const Shape& shape : {Shape{1, 16, 768},
                                 {1, 2304, 16},
                                 {3, 80, 33},
                                 {17, 8, 2},
                                 {1, 5, 0},
                                 {2, 0, 7},
                                 {9, 96, 64},
                                 {1, 100, 7},
                                 {64, 3, 48},
                                 {1, 16, 700}}) {
        const int64_t rows = shape[0], outputs = shape[1], inputs = shape[2];
        const bool adds = ++seed % 2 == 0;
        GemmArgs call{.a = uniform(maker, {rows, inputs}, kind.in, seed),
                      .b = uniform(maker, {outputs, inputs}, kind.in, seed + 20),
                      .out = uniform(maker, {rows, outputs}, kind.out, seed + 40),
                      .transpose_b = true,
                      .beta = adds ? 1.0f : 0.0f};
        if (!adds) call.bias = uniform(maker, {outputs}, kind.in, seed + 60);
        GemmArgs alone = call;
        alone.out = maker.empty({rows, outputs}, kind.out);
        kernels::table(maker.stream()).copy({.x = call.out, .out = alone.out}, maker.stream());
        if (outputs > 0) gemm(alone, maker.stream());
        calls.push_back(call);
        expected.push_back(alone.out);
      }
      kernels::gemm_each(calls, kernels::table(maker.stream()), maker.stream());
      for (size_t i = 0; i < calls.size(); ++i)
        EXPECT_TRUE(same_bits(calls[i].out, expected[i])) << str(kind) << " product " << i;
    }
  });
}

// Groups with one row, few, none and many; rows of no group at the end.
TEST(ProductRows, OfGroupsAreThoseOfGemm) {
  const std::vector<int32_t> offsets = {0, 1, 6, 6, 83, 92};
  const int64_t groups = std::ssize(offsets) - 1, rows = 95, inputs = 301, outputs = 97;
  for_each_target([&](int64_t) {
    for (const Kind& kind : kinds()) {
      if (kind.in != kind.out) continue;
      const UseBf16Products use(kind.products);
      for (const bool transposed : {true, false}) {
        Maker maker;
        const Shape b =
            transposed ? Shape{groups, outputs, inputs} : Shape{groups, inputs, outputs};
        const GroupedGemmArgs all{.a = uniform(maker, {rows, inputs}, kind.in, 1),
                                  .b = uniform(maker, b, kind.in, 2),
                                  .bias = uniform(maker, {groups, outputs}, kind.in, 3),
                                  .offsets = maker.integers(offsets),
                                  .out = maker.empty({rows, outputs}, kind.out),
                                  .transpose_b = transposed};
        grouped_gemm(all, maker.stream());
        for (int64_t g = 0; g < groups; ++g) {
          const int64_t first = offsets[static_cast<size_t>(g)];
          const int64_t count = offsets[static_cast<size_t>(g) + 1] - first;
          const GemmArgs one{.a = all.a.slice(0, first, count),
                             .b = all.b.select(0, g),
                             .out = maker.empty({count, outputs}, kind.out),
                             .transpose_b = transposed,
                             .bias = all.bias.select(0, g)};
          gemm(one, maker.stream());
          EXPECT_TRUE(same_rows(one.out, all.out, first)) << str(kind) << " group " << g;
        }
      }
    }
  });
}

TEST(ProductColumns, DoNotDependOnTheirNumber) {
  for (const Kind& kind : kinds()) {
    const UseBf16Products use(kind.products);
    Maker maker;
    GemmArgs all{.a = uniform(maker, {9, 700}, kind.in, 1),
                 .b = uniform(maker, {900, 700}, kind.in, 2),
                 .out = maker.empty({9, 900}, kind.out),
                 .transpose_b = true,
                 .bias = {}};
    gemm(all, maker.stream());
    for (const auto& [first, count] : {std::pair{0, 1}, {31, 2}, {100, 33}, {5, 800}}) {
      GemmArgs part = all;
      part.b = all.b.slice(0, first, count);
      part.out = maker.empty({9, count}, kind.out);
      gemm(part, maker.stream());
      EXPECT_EQ(to_doubles(part.out), to_doubles(all.out.slice(1, first, count)))
          << str(kind) << " columns " << count;
    }
  }
}

float as_float(const Tensor& t, int64_t row, int64_t column) {
  const int64_t at = row * t.stride(0) + column;
  return t.dtype() == DType::f32 ? t.data<float>()[at] : static_cast<float>(t.data<bf16>()[at]);
}

// The definition (kernels/cpu/products/tiles.h), then the bias: fma(a[k], b[k], sum) in ascending
// k; for pairs of bf16 the second, then the first; or the even and the odd elements of each 32
// separately.
float chain(const GemmArgs& args, int64_t i, int64_t j, WordKind kind) {
  float sum = 0;
  const int64_t depth = args.a.size(1);
  const auto add = [&](int64_t k, float to) {
    return k < depth ? std::fma(as_float(args.a, i, k), as_float(args.b, j, k), to) : to;
  };
  if (kind == WordKind::bf16_amx) {
    for (int64_t begin = 0; begin < depth; begin += 32) {
      float even = 0, odd = 0;
      for (int64_t k = begin; k < begin + 32; k += 2) {
        even = add(k, even);
        odd = add(k + 1, odd);
      }
      sum += even + odd;
    }
  } else {
    for (int64_t k = 0; k < depth; k += is_paired(kind) ? 2 : 1) {
      if (is_paired(kind)) sum = add(k + 1, sum);
      sum = add(k, sum);
    }
  }
  return sum + (args.bias.dtype() == DType::f32 ? args.bias.data<float>()[j]
                                                : static_cast<float>(args.bias.data<bf16>()[j]));
}

TEST(ProductRows, AreTheChainOfTheirDefinition) {
  if ((hwy::SupportedTargets() & (HWY_AVX3 | HWY_AVX2 | HWY_NEON)) == 0)
    GTEST_SKIP() << "no fused product and sum";
  for (const Kind& kind : kinds()) {
    const UseBf16Products use(kind.products);
    for (const int64_t rows : {1, 7, 70, 600}) {
      Maker maker;
      GemmArgs args{.a = uniform(maker, {rows, 2001}, kind.in, 1),
                    .b = uniform(maker, {70, 2001}, kind.in, 2),
                    .out = maker.empty({rows, 70}, kind.out),
                    .transpose_b = true,
                    .bias = uniform(maker, {70}, kind.in, 3)};
      gemm(args, maker.stream());
      for (int64_t i = 0; i < rows; i += 1 + rows / 7) {
        for (int64_t j = 0; j < 70; j += 3) {
          const float want = chain(args, i, j, word_kind(kind.in, kind.products));
          EXPECT_EQ(as_float(args.out, i, j),
                    kind.out == DType::f32 ? want : static_cast<float>(bf16(want)))
              << str(kind) << " rows " << rows << " at " << i << "," << j;
        }
      }
    }
  }
}

// Row-wise kernels of a layer: norms, activations, rotations, embedding and loss.
struct Model {
  Tensor x, gates, weight, logits, table, cos, sin, ids, labels, weights;
};

std::vector<Tensor> rows_of_all(const Model& m, int64_t first, int64_t count, Maker& maker) {
  const DType type = m.x.dtype();
  const int64_t width = m.x.size(1);
  const auto rows = [&](const Tensor& t) { return t.slice(0, first, count); };
  std::vector<Tensor> results;
  const auto make = [&](Shape shape, DType t) {
    return results.emplace_back(maker.empty(shape, t));
  };
  Stream& stream = maker.stream();
  for (const bool layer : {true, false}) {
    AddNormArgs args{.x = rows(m.x),
                     .residual = rows(m.x),
                     .weight = m.weight,
                     .bias = layer ? m.weight : Tensor(),
                     .sum = make({count, width}, type),
                     .normed = make({count, width}, type),
                     .mean = layer ? make({count}, DType::f32) : Tensor(),
                     .rstd = make({count}, DType::f32)};
    layer ? add_layer_norm(args, stream) : add_rms_norm(args, stream);
  }
  for (const Activation function :
       {Activation::gelu_tanh, Activation::gelu_erf, Activation::silu, Activation::relu}) {
    activation({function, false, rows(m.x), make({count, width}, type)}, stream);
    activation({function, true, rows(m.gates), make({count, width}, type)}, stream);
  }
  for (const bool interleaved : {false, true}) {
    rope({rows(m.x).view({count, 1, width}), make({count, 1, width}, type), m.cos, m.sin,
          rows(m.ids), interleaved},
         stream);
  }
  embedding({rows(m.ids), m.table, make({count, width}, type)}, stream);
  for (const bool gradient : {false, true}) {
    cross_entropy({rows(m.logits), rows(m.labels), rows(m.weights), make({count}, DType::f32),
                   gradient ? make({count, m.logits.size(1)}, type) : Tensor()},
                  stream);
  }
  return results;
}

TEST(Rows, OfEveryKernelDoNotDependOnTheirNumber) {
  constexpr int64_t kRows = 1000, kWidth = 78, kVocabulary = 4331;
  for (const DType type : kTypes) {
    Maker maker;
    std::vector<int32_t> ids, labels;
    for (int32_t i = 0; i < kRows; ++i) {
      ids.push_back(i * 7 % 50);
      labels.push_back(i * 31 % kVocabulary);
    }
    const Model m{.x = uniform(maker, {kRows, kWidth}, type, 1),
                  .gates = uniform(maker, {kRows, 2 * kWidth}, type, 2),
                  .weight = uniform(maker, {kWidth}, type, 3),
                  .logits = uniform(maker, {kRows, kVocabulary}, DType::f32, 4),
                  .table = uniform(maker, {50, kWidth}, type, 5),
                  .cos = uniform(maker, {50, kWidth / 2}, DType::f32, 6),
                  .sin = uniform(maker, {50, kWidth / 2}, DType::f32, 7),
                  .ids = maker.integers(ids),
                  .labels = maker.integers(labels),
                  .weights = maker.values(Doubles(kRows, 1.0), DType::f32)};
    const auto all = rows_of_all(m, 0, kRows, maker);
    for (const auto& [first, count] :
         {std::pair{0, 1}, {999, 1}, {5, 2}, {498, 3}, {7, 17}, {650, 300}}) {
      const auto part = rows_of_all(m, first, count, maker);
      for (size_t i = 0; i < all.size(); ++i)
        EXPECT_TRUE(same_rows(part[i], all[i], first)) << name(type) << " result " << i;
    }
  }
}

// A key-value cache that is longer than the sequences. Its unused part is NaN.
struct Cache {
  int64_t batch, length, capacity, heads, kv_heads, width;
  int64_t document = 0;  // queries see keys from its last multiple on
  DType type;

  AttentionArgs args(Maker& maker, int64_t queries, int64_t keys) const {
    AttentionArgs args{.scale = 0.125};
    args.out = maker.empty({batch, queries, heads, width}, type);
    args.lse = maker.empty({batch, heads, queries}, DType::f32);
    args.q_positions = maker.empty({batch, queries}, DType::i32);
    args.k_positions = maker.empty({batch, keys}, DType::i32);
    for (int64_t i = 0; i < batch * keys; ++i)
      args.k_positions.data<int32_t>()[i] = static_cast<int32_t>(i % keys);
    if (document > 0) args.window_start = maker.empty({batch, queries}, DType::i32);
    return args;
  }
  void place(const AttentionArgs& args, int64_t b, int64_t i, int64_t position) const {
    const int64_t at = b * args.q.size(1) + i;
    args.q_positions.data<int32_t>()[at] = static_cast<int32_t>(position);
    if (document > 0)
      args.window_start.data<int32_t>()[at] = static_cast<int32_t>(position / document * document);
  }
};

void copy_rows(const Tensor& from, int64_t i, const Tensor& to, int64_t j, int64_t count) {
  std::memcpy(to.slice(0, j, count).raw(), from.slice(0, i, count).raw(),
              static_cast<size_t>(from.slice(0, i, count).bytes()));
}
Tensor of_sample(const Tensor& t, int64_t b) {
  return t.slice(0, b, 1).view({t.size(1), t.size(2), t.size(3)});
}

// Queries [begins[b], begins[b] + count) of every sample against the cache give the rows of `all`.
void expect_decoded(const Cache& c, const AttentionArgs& all, std::span<const int64_t> begins,
                    int64_t count, Maker& maker) {
  AttentionArgs part = c.args(maker, count, c.capacity);
  part.q = maker.empty({c.batch, count, c.heads, c.width}, c.type);
  for (Tensor* t : {&part.k, &part.v}) {
    *t = maker.empty({c.batch, c.capacity, c.kv_heads, c.width}, c.type);
    std::memset(t->raw(), 0xff, static_cast<size_t>(t->bytes()));
  }
  for (int64_t b = 0; b < c.batch; ++b) {
    const int64_t begin = begins[static_cast<size_t>(b)];
    copy_rows(of_sample(all.q, b), begin, of_sample(part.q, b), 0, count);
    copy_rows(of_sample(all.k, b), 0, of_sample(part.k, b), 0, begin + count);
    copy_rows(of_sample(all.v, b), 0, of_sample(part.v, b), 0, begin + count);
    for (int64_t i = 0; i < count; ++i) c.place(part, b, i, begin + i);
  }
  attention(part, maker.stream());
  for (int64_t b = 0; b < c.batch; ++b) {
    const int64_t begin = begins[static_cast<size_t>(b)];
    EXPECT_TRUE(same_rows(of_sample(part.out, b), of_sample(all.out, b), begin))
        << name(c.type) << " group " << c.heads / c.kv_heads << " width " << c.width << " from "
        << begin << " queries " << count << " document " << c.document;
    for (int64_t n = 0; n < c.heads; ++n) {
      const Tensor got = part.lse.slice(0, b, 1).slice(1, n, 1),
                   want = all.lse.slice(0, b, 1).slice(1, n, 1).slice(2, begin, count);
      EXPECT_EQ(to_doubles(got), to_doubles(want));
    }
  }
}

void expect_decoding_equals_training(const Cache& c) {
  Maker maker;
  AttentionArgs all = c.args(maker, c.length, c.length);
  all.q = uniform(maker, {c.batch, c.length, c.heads, c.width}, c.type, 1);
  all.k = uniform(maker, {c.batch, c.length, c.kv_heads, c.width}, c.type, 2);
  all.v = uniform(maker, {c.batch, c.length, c.kv_heads, c.width}, c.type, 3);
  for (int64_t i = 0; i < c.batch * c.length; ++i)
    c.place(all, i / c.length, i % c.length, i % c.length);
  attention(all, maker.stream());
  // Each position once, with a different one for each sample.
  for (int64_t step = 0; step * c.batch < c.length; ++step) {
    std::vector<int64_t> begins;
    for (int64_t b = 0; b < c.batch; ++b)
      begins.push_back(std::min(c.length - 1, step * c.batch + b));
    expect_decoded(c, all, begins, 1, maker);
  }
  for (const int64_t count : {2, 17, 100, 200}) {
    std::vector<int64_t> begins;
    for (int64_t b = 0; b < c.batch; ++b) begins.push_back((b * 71 + 5) % (c.length - count + 1));
    expect_decoded(c, all, begins, count, maker);
  }
}

class Decoding : public ::testing::TestWithParam<DType> {};

TEST_P(Decoding, EqualsTrainingBitForBit) {
  for (const Bf16Products products : bf16_ways()) {
    if (GetParam() == DType::f32 && products != Bf16Products::widened) continue;
    const UseBf16Products use(products);
    const int64_t length = slow(products) ? 200 : 300;
    for (const int64_t document : {0, 45}) {
      for (const auto& [kv_heads, width] : {std::pair{4, 64}, {2, 80}, {1, 128}}) {
        if (slow(products) && (document == 0) != (kv_heads == 2)) continue;
        expect_decoding_equals_training({.batch = 9,
                                         .length = length,
                                         .capacity = length + 33,
                                         .heads = 4,
                                         .kv_heads = kv_heads,
                                         .width = width,
                                         .document = document,
                                         .type = GetParam()});
      }
    }
    expect_decoding_equals_training({.batch = slow(products) ? 1 : 5,
                                     .length = slow(products) ? 257 : 513,
                                     .capacity = 1024,
                                     .heads = 1,
                                     .kv_heads = 1,
                                     .width = 64,
                                     .type = GetParam()});
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Decoding, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& info) { return std::string(name(info.param)); });

// With 1, 2 and 8 rows of a key head.
TEST(Decoding, EqualsTrainingOnAnyInstructionSet) {
  const UseBf16Products use(Bf16Products::widened);
  for_each_target([](int64_t) {
    for (const auto& [type, heads, kv_heads, width] : {std::tuple{DType::f32, 2, 2, 64},
                                                       {DType::f32, 8, 1, 43},
                                                       {DType::bf16, 4, 2, 72},
                                                       {DType::bf16, 8, 1, 43}}) {
      expect_decoding_equals_training({.batch = 3,
                                       .length = 290,
                                       .capacity = 301,
                                       .heads = heads,
                                       .kv_heads = kv_heads,
                                       .width = width,
                                       .type = type});
    }
  });
}

}  // namespace
}  // namespace megatron::kernels::cpu
