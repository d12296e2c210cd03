// Compares the host's element-wise kernels, sums and copies with plain fp64 loops, on shapes with
// tails. Also checks bit-equality: an element does not depend on its index, and no result depends
// on the number of threads.
#include <bit>
#include <limits>

#include "base/error.h"
#include "kernels/cpu/kernels.h"
#include "unit/kernels/cpu_maker.h"

namespace megatron::kernels::cpu {
namespace {

constexpr Activation kActivations[] = {Activation::gelu_tanh,    Activation::gelu_erf,
                                       Activation::silu,         Activation::relu,
                                       Activation::squared_relu, Activation::quick_gelu};

double activated(Activation function, double x) {
  switch (function) {
    case Activation::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::gelu_erf: return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::silu: return x / (1 + std::exp(-x));
    case Activation::relu: return x > 0 ? x : 0;
    case Activation::squared_relu: return x > 0 ? x * x : 0;
    case Activation::quick_gelu: return x / (1 + std::exp(-1.702 * x));
  }
  return 0;
}
double slope(Activation function, double x) {
  const double h = 1e-5;
  if (function == Activation::relu) return x > 0;
  return (activated(function, x + h) - activated(function, x - h)) / (2 * h);
}

TEST(CpuActivations, MatchFp64) {
  Maker maker;
  for (const DType type : kTypes) {
    for (const Activation function : kActivations) {
      for (const Shape& shape : {Shape{1, 1}, Shape{7, 33}, Shape{3, 16}, Shape{2, 6}}) {
        const Tensor x = maker.normal(shape, type, 3), dout = maker.normal(shape, type);
        Tensor out = maker.empty(shape, type, 1), dx = maker.empty(shape, type);
        activation({function, false, x, out}, maker.stream());
        activation_backward({function, false, x, dout, dx}, maker.stream());
        Doubles want = to_doubles(x), gradient = to_doubles(dout);
        for (size_t i = 0; i < want.size(); ++i) gradient[i] *= slope(function, want[i]);
        for (double& v : want) v = activated(function, v);
        expect_near(out, want, "activation");
        expect_near(dx, gradient, "activation_backward");
      }
    }
  }
}

TEST(CpuActivations, GatedMatchFp64) {
  Maker maker;
  for (const DType type : kTypes) {
    for (const Activation function : kActivations) {
      const int64_t rows = 5, width = 19;
      const Tensor x = maker.normal({rows, 2 * width}, type),
                   dout = maker.normal({rows, width}, type);
      Tensor out = maker.empty({rows, width}, type), dx = maker.empty({rows, 2 * width}, type);
      activation({function, true, x, out}, maker.stream());
      activation_backward({function, true, x, dout, dx}, maker.stream());
      const Doubles values = to_doubles(x), d = to_doubles(dout);
      Doubles want(d.size()), gradient(values.size());
      for (int64_t i = 0; i < rows * width; ++i) {
        const int64_t g = i / width * 2 * width + i % width, u = g + width;
        want[static_cast<size_t>(i)] = activated(function, at(values, g)) * at(values, u);
        gradient[static_cast<size_t>(g)] =
            at(d, i) * at(values, u) * slope(function, at(values, g));
        gradient[static_cast<size_t>(u)] = at(d, i) * activated(function, at(values, g));
      }
      expect_near(out, want, "gated activation");
      expect_near(dx, gradient, "gated activation_backward");
    }
  }
}

// The vector functions under the activations: silu(x) / x is sigmoid, which has exp's relative
// error; gelu_erf has erf's absolute error.
TEST(CpuActivations, VectorFunctionsAreAccurateOverTheWholeRange) {
  Maker maker;
  Doubles points;
  for (double x = -85; x < 20; x += 0.00731) points.push_back(static_cast<float>(x));
  const Tensor x = maker.values(points, DType::f32).view({1, static_cast<int64_t>(points.size())});
  Tensor out = maker.empty(x.shape(), DType::f32);
  activation({Activation::silu, false, x, out}, maker.stream());
  Doubles got = to_doubles(out);
  double worst = 0;
  for (size_t i = 0; i < points.size(); ++i) {
    const double want = activated(Activation::silu, points[i]);
    if (want != 0) worst = std::max(worst, std::abs(got[i] / want - 1));
  }
  EXPECT_LE(worst, 3 * 0x1p-23);
  activation({Activation::gelu_erf, false, x, out}, maker.stream());
  got = to_doubles(out);
  worst = 0;
  for (size_t i = 0; i < points.size(); ++i) {
    if (std::abs(points[i]) < 0.01) continue;
    worst = std::max(
        worst, std::abs(got[i] - activated(Activation::gelu_erf, points[i])) / std::abs(points[i]));
  }
  EXPECT_LE(worst, 1.5e-7);
}

TEST(CpuActivations, ExtremesStayFinite) {
  Maker maker;
  const double huge = 1e30, infinity = std::numeric_limits<double>::infinity();
  const Tensor x =
      maker.values({-huge, huge, 0, infinity, std::nan(""), -90, -104, -110}, DType::f32)
          .view({1, 8});
  Tensor out = maker.empty(x.shape(), DType::f32);
  for (const Activation function : kActivations) {
    activation({function, false, x, out}, maker.stream());
    const Doubles got = to_doubles(out);
    EXPECT_NEAR(got[0], 0, 1e-30);
    const bool squares = function == Activation::squared_relu;
    EXPECT_FLOAT_EQ(static_cast<float>(got[1]), squares ? static_cast<float>(infinity) : 1e30f);
    EXPECT_EQ(got[2], 0);
    EXPECT_EQ(got[3], infinity);
    EXPECT_TRUE(std::isnan(got[4]));
    for (size_t i = 5; i < 8; ++i) EXPECT_NEAR(got[i], 0, 1e-30);
  }
}

TEST(CpuAdd, TakesEveryMixOfTypes) {
  Maker maker;
  for (const DType a_type : kTypes) {
    for (const DType b_type : kTypes) {
      for (const DType out_type : kTypes) {
        const Tensor a = maker.normal({5, 7}, a_type, 1), b = maker.normal({5, 7}, b_type, 2);
        Tensor out = maker.empty({5, 7}, out_type, 3);
        add({a, b, out}, maker.stream());
        Doubles want = to_doubles(a);
        const Doubles other = to_doubles(b);
        for (size_t i = 0; i < want.size(); ++i) want[i] += other[i];
        expect_near(out, want, "add");
      }
    }
  }
}

TEST(CpuTypes, OthersAreRefusedWithTheReferenceNamed) {
  Maker maker;
  const Tensor x = maker.normal({2, 2}, DType::f64);
  try {
    add({x, x, x}, maker.stream());
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("--device reference"), std::string::npos) << e.what();
  }
  EXPECT_THROW(activation({Activation::relu, false, x, x}, maker.stream()), Error);
  const Tensor table = maker.normal({3, 2}, DType::f64);
  EXPECT_THROW(embedding_backward({maker.integers({0, 1}), x, {table, 0}}, maker.stream()), Error);
  EXPECT_THROW(column_sum({x, {maker.normal({2}, DType::f64), 0}}, maker.stream()), Error);
}

TEST(CpuCopy, AnyStridesAndTypes) {
  Maker maker;
  const DType floating[] = {DType::f64, DType::f32, DType::bf16, DType::f16};
  for (const DType from : floating) {
    for (const DType to : floating) {
      const Tensor x = maker.normal({3, 4, 5, 37}, from);
      const std::pair<int, int> swaps[] = {{0, 0}, {0, 1}, {1, 2}, {0, 3}, {2, 3}, {1, 3}};
      for (const auto& [a, b] : swaps) {
        const Tensor source = x.transpose(a, b).slice(1, 1, 2);
        Tensor whole = maker.normal({source.size(3), source.size(0), 2, source.size(2)}, to);
        Tensor out = maker.empty(source.shape(), to),
               strided = whole.transpose(0, 1).transpose(1, 2).transpose(2, 3);
        copy({source, out}, maker.stream());
        copy({source, strided}, maker.stream());
        EXPECT_EQ(to_doubles(out), to_doubles(strided));
        const Doubles want = to_doubles(source), got = to_doubles(out);
        const double bound = from == to ? 0 : 0.004;
        for (size_t i = 0; i < want.size(); ++i)
          ASSERT_NEAR(got[i], want[i], bound * std::abs(want[i]));
      }
    }
  }
  const Tensor ids = maker.integers({1, 2, 3, 4, 5, 6}).view({2, 3});
  Tensor turned = maker.empty({3, 2}, DType::i32);
  copy({ids.transpose(0, 1), turned}, maker.stream());
  EXPECT_TRUE(same_bits(turned, maker.integers({1, 4, 2, 5, 3, 6}).view({3, 2})));
}

// Compares with a copy in the same order, for outputs of 2 MB and more and for smaller ones.
template <class To>
void expect_turned(Maker& maker, const Tensor& x, DType to) {
  const Tensor source = x.transpose(0, 2);
  Tensor kept = maker.empty(x.shape(), to), turned = maker.empty(source.shape(), to);
  copy({x, kept}, maker.stream());
  copy({source, turned}, maker.stream());
  const int64_t planes = x.size(0), rows = x.size(1), width = x.size(2);
  const auto *want = static_cast<const To*>(kept.raw()),
             *got = static_cast<const To*>(turned.raw());
  int64_t wrong = 0;
  for (int64_t i = 0; i < width; ++i) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t p = 0; p < planes; ++p) wrong += *got++ != want[(p * rows + r) * width + i];
    }
  }
  EXPECT_EQ(wrong, 0) << x.shape().str() << " " << name(x.dtype()) << " to " << name(to);
}

TEST(CpuCopy, TransposesEveryBit) {
  Maker maker;
  for (const Shape& shape : {Shape{12, 704, 64}, Shape{1, 150, 333}, Shape{5, 7, 3}}) {
    const Tensor x = maker.normal(shape, DType::f32), y = maker.normal(shape, DType::bf16);
    x.data<float>()[3] = std::bit_cast<float>(0x7f800001u);
    y.data<bf16>()[5].bits = 0xff81;
    expect_turned<uint32_t>(maker, x, DType::f32);
    expect_turned<uint16_t>(maker, x, DType::bf16);
    expect_turned<uint32_t>(maker, y, DType::f32);
    expect_turned<uint16_t>(maker, y, DType::bf16);
  }
}

TEST(CpuCopy, RoundsToBf16AsTheScalarTypeDoes) {
  Maker maker;
  Doubles values;
  for (const uint32_t bits : {0x3f808000u, 0x3f818000u, 0x3f808001u, 0x7f7fffffu, 0x7f800000u,
                              0xff800000u, 0x00000001u, 0x80008000u, 0x00018000u, 0x80000000u}) {
    values.push_back(std::bit_cast<float>(bits));
  }
  const Tensor x = maker.values(values, DType::f32);
  Tensor out = maker.empty(x.shape(), DType::bf16);
  copy({x, out}, maker.stream());
  for (size_t i = 0; i < values.size(); ++i)
    EXPECT_EQ(out.data<bf16>()[i].bits, bf16(static_cast<float>(values[i])).bits);
  x.data<float>()[0] = std::bit_cast<float>(0x7f800001u);
  copy({x, out}, maker.stream());
  EXPECT_EQ(out.data<bf16>()[0].bits, 0x7fc0);
}

TEST(CpuFill, WritesEveryType) {
  Maker maker;
  for (const DType type : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    for (const double value : {0.0, -1.5}) {
      Tensor out = maker.normal({3, 7}, type);
      fill({out, value}, maker.stream());
      EXPECT_EQ(to_doubles(out), Doubles(21, value));
    }
  }
  Tensor ids = maker.integers({1, 2, 3});
  fill({ids, -7}, maker.stream());
  EXPECT_TRUE(same_bits(ids, maker.integers({-7, -7, -7})));
}

TEST(CpuSums, MatchFp64) {
  Maker maker;
  for (const DType type : kTypes) {
    for (const float beta : {0.0f, 1.0f}) {
      const Tensor x = maker.normal({131, 37}, type);
      Tensor out = maker.normal({37}, DType::f32);
      Doubles want = to_doubles(out);
      for (double& v : want) v *= static_cast<double>(beta);
      const Doubles values = to_doubles(x);
      for (size_t i = 0; i < values.size(); ++i) want[i % 37] += values[i];
      column_sum({x, {out, beta}}, maker.stream());
      expect_near(out, want, "column_sum");
    }
  }
  for (const DType type : {DType::f32, DType::f64}) {
    const Tensor x = maker.normal({101}, type), weights = maker.normal({101}, DType::f32);
    const Doubles values = to_doubles(x), w = to_doubles(weights);
    double plain = 0, weighted = 0;
    for (size_t i = 0; i < values.size(); ++i) plain += values[i], weighted += w[i] * values[i];
    Tensor out = maker.scalar(0);
    sum({x, {}, out}, maker.stream());
    EXPECT_EQ(*out.data<double>(), plain);
    sum({x, weights, out}, maker.stream());
    EXPECT_EQ(*out.data<double>(), weighted);
  }
}

TEST(CpuSums, SquaresAreAddedInTheOrderOfTheContract) {
  Maker maker;
  for (const DType type : {DType::f32, DType::f64}) {
    const int64_t n = 2 * kNormBlock + 13;
    const Tensor x = maker.normal({n}, type, 1);
    Tensor partial = maker.empty({3}, DType::f64);
    sum_of_squares({x, partial}, maker.stream());
    const Doubles values = to_doubles(x);
    for (int64_t block = 0; block < 3; ++block) {
      double s[8] = {};
      for (int64_t i = block * kNormBlock; i < std::min(n, (block + 1) * kNormBlock); ++i)
        s[i % 8] += at(values, i) * at(values, i);
      EXPECT_EQ(partial.data<double>()[block],
                ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7])));
    }
  }
}

// A row of equal elements gives equal results, whatever vector, tail or alignment an element has.
TEST(CpuEqualBits, AnElementDoesNotDependOnItsIndex) {
  Maker maker;
  for (const DType type : kTypes) {
    for (const double value : {-1.37, 0.731, 5.25}) {
      for (const int64_t shift : {0, 1, 7}) {
        const Shape shape{1, 77};
        Tensor x = maker.empty(shape, type, shift), out = maker.empty(shape, type, 2 * shift),
               dx = maker.empty(shape, type);
        fill({x, value}, maker.stream());
        const auto expect_equal = [&](const Tensor& t, const char* what) {
          const Doubles v = to_doubles(t);
          EXPECT_EQ(v, Doubles(v.size(), v[0])) << what;
        };
        for (const Activation function : kActivations) {
          activation({function, false, x, out}, maker.stream());
          expect_equal(out, "activation");
          activation_backward({function, false, x, x, dx}, maker.stream());
          expect_equal(dx, "activation_backward");
        }
        Tensor loss = maker.empty({1}, DType::f32);
        const Tensor one = maker.values({1}, DType::f32), labels = maker.integers({0});
        cross_entropy({x, labels, one, loss, dx}, maker.stream());
        expect_equal(dx.slice(1, 1, 76).slice(0, 0, 1), "cross_entropy");
      }
    }
  }
}

// Every kernel with more than one block, with one thread and with three.
TEST(CpuEqualBits, ThreadsDoNotChangeAnything) {
  const auto run = [](int threads) {
    Maker maker(threads);
    std::vector<Tensor> results;
    const int64_t rows = 300, width = 515;
    for (const DType type : kTypes) {
      const Tensor x = maker.normal({rows, width}, type), d = maker.normal({rows, width}, type),
                   w = maker.normal({width}, type);
      const auto fresh = [&](Shape shape, DType t) {
        return results.emplace_back(maker.empty(shape, t));
      };
      const AddNormArgs norm{x,
                             d,
                             w,
                             w,
                             1e-5f,
                             fresh({rows, width}, type),
                             fresh({rows, width}, type),
                             fresh({rows}, DType::f32),
                             fresh({rows}, DType::f32)};
      add_layer_norm(norm, maker.stream());
      add_layer_norm_backward({d,
                               x,
                               norm.sum,
                               w,
                               norm.mean,
                               norm.rstd,
                               fresh({rows, width}, type),
                               {fresh({width}, DType::f32), 0},
                               {fresh({width}, DType::f32), 0}},
                              maker.stream());
      column_sum({x, {fresh({width}, DType::f32), 0}}, maker.stream());
      activation({Activation::gelu_tanh, false, x, fresh({rows, width}, type)}, maker.stream());
      std::vector<int32_t> ids(rows);
      for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * i % 67);
      embedding_backward({maker.integers(ids), d, {fresh({70, width}, DType::f32), 0}},
                         maker.stream());
      cross_entropy({x, maker.integers(ids), maker.values(Doubles(rows, 0.7), DType::f32),
                     fresh({rows}, DType::f32), fresh({rows, width}, type)},
                    maker.stream());
    }
    const Tensor g = maker.normal({5 * kNormBlock}, DType::f32);
    sum_of_squares({g, results.emplace_back(maker.empty({5}, DType::f64))}, maker.stream());
    return results;
  };
  const auto one = run(1), three = run(3);
  ASSERT_EQ(one.size(), three.size());
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(same_bits(one[i], three[i])) << i;
}

// Rows are so long that a block has few of them. Their number must not depend on the threads,
// because the first row of a block finds its largest element in another order than the others.
// Zeros of both signs show the difference.
TEST(CpuEqualBits, ThreadsDoNotChangeTheLargestLogit) {
  const int64_t rows = 130, vocabulary = 16500;
  const auto run = [&](int threads) {
    Maker maker(threads);
    const Tensor x = maker.empty({rows, vocabulary}, DType::f32);
    fill({x, -1}, maker.stream());
    for (int64_t t = 0; t < rows; ++t) {
      x.data<float>()[t * vocabulary + 16] = -0.0f;
      x.data<float>()[t * vocabulary + 64] = 0.0f;
    }
    const VocabularyStatsArgs args{.logits = x,
                                   .labels = maker.integers(std::vector<int32_t>(rows, 3)),
                                   .weights = maker.values(Doubles(rows, 1), DType::f32),
                                   .exponentials = maker.empty({rows, vocabulary}, DType::f32),
                                   .stats = maker.empty({rows, 3}, DType::f32)};
    vocabulary_stats(args, maker.stream());
    return std::vector<Tensor>{args.stats, args.exponentials};
  };
  const auto one = run(1), many = run(16);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(same_bits(one[i], many[i])) << i;
}

}  // namespace
}  // namespace megatron::kernels::cpu
