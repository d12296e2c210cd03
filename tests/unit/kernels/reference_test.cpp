// Compares the reference's kernels with closed forms, independent sums and numerical derivatives,
// in fp64.
#include "base/error.h"
#include "support.h"

namespace megatron::kernels {
namespace {

class Reference : public ReferenceTest {};

TEST_F(Reference, GemmOfSmallMatrices) {
  const Tensor a = of({2, 3}, {1, 2, 3, 4, 5, 6}), b = of({3, 2}, {7, 8, 9, 10, 11, 12});
  const Tensor out = of({2, 2}, {1, 1, 1, 1});
  kernels().gemm({.a = a, .b = b, .out = out}, stream());
  EXPECT_EQ(to_doubles(out), (std::vector<double>{58, 64, 139, 154}));
  kernels().gemm({.a = a, .b = b, .out = out, .beta = 1, .bias = of({2}, {100, 200})}, stream());
  EXPECT_EQ(to_doubles(out), (std::vector<double>{216, 328, 378, 508}));
  const Tensor square = make({3, 3});
  kernels().gemm({.a = a, .b = a, .out = square, .transpose_a = true}, stream());
  EXPECT_EQ(to_doubles(square), (std::vector<double>{17, 22, 27, 22, 29, 36, 27, 36, 45}));
  const Tensor rows = make({2, 2});
  kernels().gemm({.a = a, .b = a, .out = rows, .transpose_b = true}, stream());
  EXPECT_EQ(to_doubles(rows), (std::vector<double>{14, 32, 32, 77}));
}

TEST_F(Reference, GemmBatchedAndRepeated) {
  const Tensor a = random("a", {3, 5, 7}), b = random("b", {7, 4});
  const Tensor out = make({3, 5, 4}), flat = make({15, 4});
  const std::array<int64_t, 3> strides{0, 4, 1};
  kernels().gemm({.a = a, .b = b.as_strided({3, 7, 4}, strides), .out = out}, stream());
  kernels().gemm({.a = a.view({15, 7}), .b = b, .out = flat}, stream());
  EXPECT_EQ(to_doubles(out), to_doubles(flat));
}

TEST_F(Reference, GemmAccumulatesBf16InFp32) {
  const Tensor a = random("a", {3, 300}, DType::bf16), b = random("b", {300, 2}, DType::bf16);
  const Tensor wide = make({3, 2}, DType::f32), narrow = make({3, 2}, DType::bf16);
  kernels().gemm({.a = a, .b = b, .out = wide}, stream());
  kernels().gemm({.a = a, .b = b, .out = narrow}, stream());
  const std::vector<double> x = to_doubles(a), y = to_doubles(b);
  for (size_t i = 0; i < 6; ++i) {
    double sum = 0;
    for (size_t k = 0; k < 300; ++k) sum += x[i / 2 * 300 + k] * y[k * 2 + i % 2];
    EXPECT_NEAR(to_doubles(wide)[i], sum, 1e-4);
    EXPECT_EQ(to_floats(narrow)[i], static_cast<float>(bf16(to_floats(wide)[i])));
  }
}

TEST_F(Reference, GemmRefusesShapesThatDoNotFit) {
  const Tensor a = make({2, 3}), out = make({2, 2});
  try {
    kernels().gemm({.a = a, .b = make({4, 2}), .out = out}, stream());
    FAIL();
  } catch (const InternalError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("gemm"), std::string::npos) << text;
    EXPECT_NE(text.find("a [2, 3] f64"), std::string::npos) << text;
    EXPECT_NE(text.find("b [4, 2] f64"), std::string::npos) << text;
  }
  EXPECT_THROW(kernels().gemm({.a = a, .b = make({3, 2}, DType::f32), .out = out}, stream()),
               InternalError);
}

TEST_F(Reference, NormsOfOneRow) {
  const Tensor x = of({1, 4}, {1, 2, 3, 6}), weight = of({4}, {1, 1, 2, 2}),
               bias = of({4}, {0, 0, 1, 1});
  const Tensor normed = make({1, 4}), mean = make({1}), rstd = make({1}), sum = make({1, 4});
  kernels().add_layer_norm({.x = x,
                            .residual = of({1, 4}, {1, 1, 1, 1}),
                            .weight = weight,
                            .bias = bias,
                            .eps = 0,
                            .sum = sum,
                            .normed = normed,
                            .mean = mean,
                            .rstd = rstd},
                           stream());
  EXPECT_EQ(to_doubles(sum), (std::vector<double>{2, 3, 4, 7}));
  EXPECT_EQ(to_doubles(mean)[0], 4);
  const double r = 1 / std::sqrt(3.5);
  EXPECT_NEAR(to_doubles(rstd)[0], r, 1e-15);
  expect_near(normed, {-2 * r, -r, 1, 6 * r + 1}, 1e-14);
  kernels().add_rms_norm({.x = x, .weight = weight, .eps = 0.5, .normed = normed, .rstd = rstd},
                         stream());
  const double s = 1 / std::sqrt(12.5 + 0.5);
  expect_near(normed, {s, 2 * s, 6 * s, 12 * s}, 1e-14);
}

TEST_F(Reference, NormStatisticsAreOfTheSumAsStored) {
  const Tensor x = of({1, 2}, {256, 1}, DType::bf16), residual = of({1, 2}, {1, 0}, DType::bf16);
  const Tensor sum = make({1, 2}, DType::bf16), normed = make({1, 2}, DType::bf16),
               rstd = make({1}, DType::f32);
  kernels().add_rms_norm({.x = x,
                          .residual = residual,
                          .weight = of({2}, {1, 1}, DType::bf16),
                          .eps = 0,
                          .sum = sum,
                          .normed = normed,
                          .rstd = rstd},
                         stream());
  EXPECT_EQ(to_doubles(sum)[0], 256);  // 257 is not representable in bf16
  EXPECT_NEAR(to_doubles(rstd)[0], 1 / std::sqrt((65536 + 1) / 2.0), 1e-9);
}

TEST_F(Reference, NormBackwardIsTheDerivative) {
  for (const bool layer : {false, true}) {
    const Shape shape{3, 5};
    const Tensor x = random("x", shape), weight = random("w", {5}),
                 bias = layer ? random("b", {5}) : Tensor();
    const Tensor dnormed = random("dnormed", shape), dsum_in = random("dsum_in", shape);
    const Tensor sum = make(shape), normed = make(shape), mean = layer ? make({3}) : Tensor(),
                 rstd = make({3});
    const auto loss = [&] {
      const AddNormArgs args{.x = x,
                             .weight = weight,
                             .bias = bias,
                             .sum = sum,
                             .normed = normed,
                             .mean = mean,
                             .rstd = rstd};
      layer ? kernels().add_layer_norm(args, stream()) : kernels().add_rms_norm(args, stream());
      return dot(normed, dnormed) + dot(sum, dsum_in);
    };
    loss();
    const Tensor dsum = make(shape), dweight = of({5}, {1, 2, 3, 4, 5}), dbias = make({5});
    AddNormBackwardArgs args{.dnormed = dnormed,
                             .dsum_in = dsum_in,
                             .sum = sum,
                             .weight = weight,
                             .mean = mean,
                             .rstd = rstd,
                             .dsum = dsum,
                             .dweight = {dweight, 0}};
    if (layer) args.dbias = {dbias, 0};
    const auto backward =
        layer ? kernels().add_layer_norm_backward : kernels().add_rms_norm_backward;
    backward(args, stream());
    expect_gradient(x, dsum, loss, "x");
    expect_gradient(weight, dweight, loss, "weight");
    if (layer) expect_gradient(bias, dbias, loss, "bias");
    loss();
    const std::vector<double> once = to_doubles(dweight);
    args.dweight.beta = 1;
    backward(args, stream());
    for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(to_doubles(dweight)[i], 2 * once[i], 1e-12);
  }
}

TEST_F(Reference, ActivationValues) {
  const Tensor x = of({1, 3}, {-1, 0, 2}), out = make({1, 3});
  kernels().activation({Activation::gelu_erf, false, x, out}, stream());
  expect_near(out, {-0.158655253931457, 0, 1.954499736103642}, 1e-14);
  kernels().activation({Activation::gelu_tanh, false, x, out}, stream());
  expect_near(out, {-0.158808009450628, 0, 1.954597694087775}, 1e-8);
  kernels().activation({Activation::silu, false, x, out}, stream());
  expect_near(out, {-0.268941421369995, 0, 1.761594155955765}, 1e-14);
  kernels().activation({Activation::relu, false, x, out}, stream());
  expect_near(out, {0, 0, 2}, 0);
  const Tensor product = make({1, 1});
  kernels().activation({Activation::silu, true, of({1, 2}, {2, 3}), product}, stream());
  expect_near(product, {3 * 1.761594155955765}, 1e-14);
}

TEST_F(Reference, ActivationBackwardIsTheDerivative) {
  for (const Activation f :
       {Activation::gelu_tanh, Activation::gelu_erf, Activation::silu, Activation::relu}) {
    for (const bool gated : {false, true}) {
      const Tensor x = random("x", {3, 8}, DType::f64, 2), out = make({3, gated ? 4 : 8});
      const Tensor dout = random("dout", out.shape()), dx = make(x.shape());
      kernels().activation_backward({f, gated, x, dout, dx}, stream());
      const auto loss = [&] {
        kernels().activation({f, gated, x, out}, stream());
        return dot(out, dout);
      };
      expect_gradient(x, dx, loss, gated ? "gated" : "plain");
    }
  }
}

class ReferenceRope : public ReferenceTest {
 protected:
  RopeArgs args(const Tensor& x, const Tensor& out, std::vector<double> positions, bool interleaved,
                int64_t half) {
    std::vector<double> cosines, sines;
    for (int64_t p = 0; p < 64; ++p) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(p) *
                             std::pow(100.0, -static_cast<double>(i) / static_cast<double>(half));
        cosines.push_back(std::cos(angle));
        sines.push_back(std::sin(angle));
      }
    }
    const auto tokens = static_cast<int64_t>(positions.size());
    return {x,
            out,
            of({64, half}, cosines),
            of({64, half}, sines),
            of({tokens}, positions, DType::i32),
            interleaved,
            false};
  }
};

TEST_F(ReferenceRope, QuarterTurnMovesPairs) {
  const Tensor x = of({1, 1, 5}, {1, 2, 3, 4, 5}), out = make({1, 1, 5});
  RopeArgs turn{x,     out,  of({1, 2}, {0, 0}), of({1, 2}, {1, 1}), of({1}, {0}, DType::i32),
                false, false};
  kernels().rope(turn, stream());
  EXPECT_EQ(to_doubles(out), (std::vector<double>{-3, -4, 1, 2, 5}));
  turn.interleaved = true;
  kernels().rope(turn, stream());
  EXPECT_EQ(to_doubles(out), (std::vector<double>{-2, 1, -4, 3, 5}));
}

TEST_F(ReferenceRope, InverseGivesTheInputBack) {
  for (const bool interleaved : {false, true}) {
    const Tensor x = random("x", {4, 3, 10}), out = make({4, 3, 10});
    RopeArgs a = args(x, out, {0, 5, 63, 2}, interleaved, 4);
    kernels().rope(a, stream());
    a.x = out;
    a.inverse = true;
    kernels().rope(a, stream());
    expect_near(out, to_doubles(x), 1e-14);
  }
}

TEST_F(ReferenceRope, DotProductsDependOnTheDistanceOnly) {
  for (const bool interleaved : {false, true}) {
    const Tensor q = random("q", {1, 1, 8}), k = random("k", {1, 1, 8});
    const auto score = [&](double i, double j) {
      const Tensor a = make({1, 1, 8}), b = make({1, 1, 8});
      kernels().rope(args(q, a, {i}, interleaved, 4), stream());
      kernels().rope(args(k, b, {j}, interleaved, 4), stream());
      return dot(a, b);
    };
    EXPECT_NEAR(score(9, 4), score(25, 20), 1e-13);
    EXPECT_GT(std::abs(score(9, 4) - score(9, 5)), 1e-3);
  }
}

TEST_F(Reference, EmbeddingAndItsGradientWithRepeatedIds) {
  const Tensor ids = of({4}, {2, 0, 2, 2}, DType::i32), table = of({3, 2}, {1, 2, 3, 4, 5, 6}),
               out = make({4, 2});
  kernels().embedding({ids, table, out}, stream());
  EXPECT_EQ(to_doubles(out), (std::vector<double>{5, 6, 1, 2, 5, 6, 5, 6}));
  const Tensor dout = of({4, 2}, {1, 10, 2, 20, 3, 30, 4, 40}),
               dtable = of({3, 2}, {9, 9, 9, 9, 9, 9});
  kernels().embedding_backward({ids, dout, {dtable, 0}}, stream());
  EXPECT_EQ(to_doubles(dtable), (std::vector<double>{2, 20, 0, 0, 8, 80}));
  kernels().embedding_backward({ids, dout, {dtable, 1}}, stream());
  EXPECT_EQ(to_doubles(dtable), (std::vector<double>{4, 40, 0, 0, 16, 160}));
  EXPECT_THROW(kernels().embedding({of({1}, {3}, DType::i32), table, make({1, 2})}, stream()),
               InternalError);
}

TEST_F(Reference, CrossEntropyAndItsGradient) {
  const Tensor logits = random("logits", {3, 5}, DType::f64, 2),
               labels = of({3}, {4, -100, 0}, DType::i32);
  const Tensor weights = of({3}, {1, 0, 0.5}), loss = make({3}), dlogits = make({3, 5});
  const CrossEntropyArgs args{logits, labels, weights, loss, dlogits};
  kernels().cross_entropy(args, stream());
  const std::vector<double> x = to_doubles(logits);
  double sum = 0;
  for (size_t i = 0; i < 5; ++i) sum += std::exp(x[i]);
  EXPECT_NEAR(to_doubles(loss)[0], std::log(sum) - x[4], 1e-14);
  EXPECT_EQ(to_doubles(loss)[1], 0);
  const Tensor gradient = make({3, 5}), unused = make({3, 5});
  kernels().copy({dlogits, gradient}, stream());
  const auto weighted = [&] {
    kernels().cross_entropy({logits, labels, weights, loss, unused}, stream());
    return dot(loss, weights);
  };
  expect_gradient(logits, gradient, weighted, "logits");
  kernels().cross_entropy({logits, labels, weights, loss, logits}, stream());
  EXPECT_EQ(to_doubles(logits), to_doubles(gradient));
}

TEST_F(Reference, CrossEntropyOfLargeLogitsIsFinite) {
  const Tensor logits = of({1, 3}, {30000, 29999, -30000}), loss = make({1}),
               dlogits = make({1, 3});
  kernels().cross_entropy({logits, of({1}, {1}, DType::i32), of({1}, {1}), loss, dlogits},
                          stream());
  EXPECT_NEAR(to_doubles(loss)[0], 1 + std::log1p(std::exp(-1)), 1e-11);
}

TEST_F(Reference, ReductionsAddInTheirOrder) {
  const Tensor out = make({}), weights = of({4}, {1, 2, 0, 1}, DType::f32);
  kernels().sum({of({4}, {1, 2, 3, 4}, DType::f32), weights, out}, stream());
  EXPECT_EQ(to_doubles(out)[0], 9);
  kernels().sum({of({3}, {0x1p60, 1, -0x1p60}), {}, out}, stream());
  EXPECT_EQ(to_doubles(out)[0], 0);  // 1 is lost in ascending order
  const Tensor x = random("x", {kNormBlock + 3}, DType::f32), partial = make({2});
  kernels().sum_of_squares({x, partial}, stream());
  double head = 0, tail = 0;
  const std::vector<double> values = to_doubles(x);
  for (size_t i = 0; i < values.size(); ++i)
    (i < kNormBlock ? head : tail) += values[i] * values[i];
  expect_near(partial, {head, tail}, 1e-9);
  const Tensor columns = of({2}, {100, 100});
  kernels().column_sum({of({3, 2}, {1, 2, 3, 4, 5, 6}), {columns, 1}}, stream());
  EXPECT_EQ(to_doubles(columns), (std::vector<double>{109, 112}));
}

TEST_F(Reference, AddCopyAndFill) {
  const Tensor a = of({2, 2}, {1, 2, 3, 4}, DType::bf16),
               b = of({2, 2}, {0.25, 0.5, 0.125, 1}, DType::f32);
  const Tensor out = make({2, 2}, DType::f32);
  kernels().add({a, b, out}, stream());
  EXPECT_EQ(to_doubles(out), (std::vector<double>{1.25, 2.5, 3.125, 5}));
  const Tensor turned = make({2, 2}, DType::f16);
  kernels().copy({out.transpose(0, 1), turned}, stream());
  EXPECT_EQ(to_doubles(turned), (std::vector<double>{1.25, 3.125, 2.5, 5}));
  const Tensor numbers = make({2}, DType::i64);
  kernels().copy({of({2}, {1, 2}, DType::i64), numbers}, stream());
  numbers.data<int64_t>()[0] = (int64_t{1} << 62) + 1;
  const Tensor again = make({2}, DType::i64);
  kernels().copy({numbers, again}, stream());
  EXPECT_EQ(again.data<int64_t>()[0], (int64_t{1} << 62) + 1);
  kernels().fill({turned, -2}, stream());
  EXPECT_EQ(to_doubles(turned), (std::vector<double>{-2, -2, -2, -2}));
}

}  // namespace
}  // namespace megatron::kernels
