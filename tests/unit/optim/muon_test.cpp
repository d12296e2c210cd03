// Compares Muon with plain loops, and checks its iterations' effect on singular values.
#include "optim/muon.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/philox.h"
#include "kernels/observer.h"
#include "optim/optimizer.h"

namespace megatron::optim {
namespace {

std::vector<double> normals(int64_t count, const std::string& name) {
  const RandomStream stream(7, name);
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(stream.normal(static_cast<uint64_t>(i)));
  return values;
}

// A parameter [rows, columns] with a gradient.
parallel::ParameterSpec make(Runtime& runtime, int64_t rows, int64_t columns, DType type,
                             const std::string& name) {
  Arena& arena = runtime.arena(MemoryClass::parameters);
  parallel::ParameterSpec placed;
  placed.parameter.name = name;
  placed.parameter.value = Tensor::empty(arena, {rows, columns}, type, name);
  const DType wide = type == DType::f64 ? type : DType::f32;
  placed.parameter.uses[0].grad = Tensor::empty(arena, {rows, columns}, wide, name + ".grad");
  copy_from(placed.parameter.value, std::span<const double>(normals(rows * columns, name)));
  copy_from(placed.parameter.uses[0].grad,
            std::span<const double>(normals(rows * columns, name + ".grad")));
  placed.placement.tensors = {{.name = name, .global = {rows, columns}}};
  return placed;
}

parallel::Shard shard_of(parallel::ParameterSpec& placed) {
  return {.placed = &placed,
          .value = placed.parameter.value,
          .gradient = placed.parameter.uses[0].grad};
}

using Matrix = std::vector<std::vector<double>>;

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix out(a.size(), std::vector<double>(b[0].size()));
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < b[0].size(); ++j)
      for (size_t k = 0; k < b.size(); ++k) out[i][j] += a[i][k] * b[k][j];
  return out;
}

Matrix transposed(const Matrix& a) {
  Matrix out(a[0].size(), std::vector<double>(a.size()));
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < a[0].size(); ++j) out[j][i] = a[i][j];
  return out;
}

Matrix to_matrix(const Tensor& tensor) {
  const std::vector<double> values = to_doubles(tensor);
  Matrix m(static_cast<size_t>(tensor.size(0)));
  for (size_t i = 0; i < m.size(); ++i) {
    const auto begin = values.begin() + static_cast<int64_t>(i) * tensor.size(1);
    m[i].assign(begin, begin + tensor.size(1));
  }
  return m;
}

Matrix plain(Matrix x, const std::vector<std::array<double, 3>>& list) {
  double squares = 0;
  for (const auto& row : x)
    for (const double v : row) squares += v * v;
  for (auto& row : x)
    for (double& v : row) v /= std::sqrt(squares);
  for (const auto& [a, b, c] : list) {
    const Matrix gram = product(x, transposed(x)), square = product(gram, gram);
    Matrix mixed = gram;
    for (size_t i = 0; i < gram.size(); ++i)
      for (size_t j = 0; j < gram.size(); ++j) mixed[i][j] = b * gram[i][j] + c * square[i][j];
    const Matrix y = product(mixed, x);
    for (size_t i = 0; i < x.size(); ++i)
      for (size_t j = 0; j < x[0].size(); ++j) x[i][j] = a * x[i][j] + y[i][j];
  }
  return x;
}

double distance(const Matrix& a, const Matrix& b) {
  double squares = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < a[0].size(); ++j) {
      squares += (a[i][j] - b[i][j]) * (a[i][j] - b[i][j]);
      norm += b[i][j] * b[i][j];
    }
  }
  return std::sqrt(squares / norm);
}

// Wide, tall and square matrices in each precision, compared with plain products of [rows,
// columns].
TEST(Muon, IterationsArePlainProducts) {
  Runtime runtime({DeviceKind::cpu, 0}, 2);
  for (const auto& [rows, columns] : {std::pair{5, 9}, {9, 5}, {33, 33}, {1, 7}, {70, 3}}) {
    parallel::ParameterSpec placed = make(runtime, rows, columns, DType::f32, "w");
    const parallel::ParameterSpec* only = &placed;
    for (const auto& [precision, bound] : {std::pair{ProductPrecision::highest, 1e-5},
                                           {ProductPrecision::high, 1e-5},
                                           {ProductPrecision::medium, 0.1},
                                           {ProductPrecision::low, 0.2}}) {
      MuonConfig config{.precision = precision};
      Muon muon(config, std::span(&only, 1), nullptr, runtime);
      Tensor x = placed.parameter.uses[0].grad;
      copy_from(x, std::span<const double>(normals(int64_t{rows} * columns, "x")));
      const Matrix expected = plain(to_matrix(x), coefficients(config.coefficients, 5));
      muon.orthogonalize(x, runtime.stream());
      const double error = distance(to_matrix(x), expected);
      EXPECT_LE(error, bound) << rows << "x" << columns << " " << static_cast<int>(precision);
      EXPECT_EQ(error > 1e-5, precision <= ProductPrecision::medium) << error;
    }
  }
}

// Every coefficient set brings the singular values of a random matrix near 1.
TEST(Muon, SingularValuesBecomeOne) {
  Runtime runtime({DeviceKind::cpu, 0}, 1);
  parallel::ParameterSpec placed = make(runtime, 12, 40, DType::f32, "w");
  const parallel::ParameterSpec* only = &placed;
  for (const auto& [set, iterations, bound] : {std::tuple{NewtonSchulz::simple, 5, 0.4},
                                               {NewtonSchulz::quintic, 5, 0.3},
                                               {NewtonSchulz::polar_express, 8, 1e-3},
                                               {NewtonSchulz::polar_express, 12, 1e-3},
                                               {NewtonSchulz::cans, 5, 0.1},
                                               {NewtonSchulz::aol, 4, 0.3}}) {
    const MuonConfig config{
        .coefficients = set, .iterations = iterations, .precision = ProductPrecision::highest};
    Muon muon(config, std::span(&only, 1), nullptr, runtime);
    Tensor x = placed.parameter.uses[0].grad;
    copy_from(x, std::span<const double>(normals(480, "x")));
    muon.orthogonalize(x, runtime.stream());
    const Matrix m = to_matrix(x), gram = product(m, transposed(m));
    for (size_t i = 0; i < gram.size(); ++i)
      for (size_t j = 0; j < gram.size(); ++j)
        EXPECT_NEAR(gram[i][j], i == j ? 1 : 0, 2.5 * bound)
            << static_cast<int>(set) << " " << i << " " << j;
  }
}

TEST(Muon, CoefficientsCycleOrStay) {
  EXPECT_EQ(coefficients(NewtonSchulz::simple, 3).back()[0], 3.4445);
  EXPECT_EQ(coefficients(NewtonSchulz::quintic, 6).back()[0], 4.0848);
  EXPECT_EQ(coefficients(NewtonSchulz::aol, 6).back()[0], 3.4585);
  EXPECT_EQ(coefficients(NewtonSchulz::polar_express, 20).back()[0], 1.875);
  EXPECT_EQ(coefficients(NewtonSchulz::cans, 7).back()[0], 2.2737);
}

TEST(Muon, FactorsOfShapes) {
  EXPECT_DOUBLE_EQ(scale_factor(MuonScale::spectral, 4, 9), 3);
  EXPECT_DOUBLE_EQ(scale_factor(MuonScale::unit_rms_norm, 4, 9), 2.0 / 3);
  EXPECT_DOUBLE_EQ(scale_factor(MuonScale::shape_scaling, 4, 9), 1);
  EXPECT_DOUBLE_EQ(scale_factor(MuonScale::shape_scaling, 9, 4), 1.5);
}

// One step of [q | k | v]: as three parameters when split, as one when not.
TEST(Muon, MatricesOfAParameterAreTakenOneByOne) {
  Runtime runtime({DeviceKind::cpu, 0}, 1);
  OptimizerConfig config{.method = Method::muon, .clip_grad = 0};
  config.muon.precision = ProductPrecision::highest;
  const auto stepped = [&](bool split, std::vector<int64_t> matrices) {
    config.muon.split_qkv = split;
    parallel::ParameterSpec placed = make(runtime, 8, 6, DType::f32, "w");
    placed.matrices = std::move(matrices);
    const parallel::Shard shard = shard_of(placed);
    Optimizer optimizer(std::span(&shard, 1), config, {}, runtime);
    optimizer.find_norm(1);
    optimizer.update({.learning_rate = 0.1});
    return to_doubles(placed.parameter.value);
  };
  EXPECT_NE(stepped(true, {4, 2, 2}), stepped(true, {}));
  EXPECT_EQ(stepped(false, {4, 2, 2}), stepped(true, {}));
  EXPECT_EQ(stepped(true, {8}), stepped(true, {}));
}

// Counts the matrix products of a stream.
class ProductCount final : public kernels::Observer {
 public:
  void after(const kernels::Call& call) override { count_ += call.kernel == "gemm"; }
  int take() { return std::exchange(count_, 0); }

 private:
  int count_ = 0;
};

TEST(Muon, ARehearsalMakesTheProductsOfAnUpdateAndChangesNothing) {
  const OptimizerConfig config{.method = Method::muon};
  const auto updated = [&](bool rehearsed) {
    Runtime runtime({DeviceKind::cpu, 0}, 1);
    ProductCount products;
    runtime.stream().watch(&products);
    parallel::ParameterSpec placed = make(runtime, 8, 6, DType::bf16, "w");
    placed.matrices = {4, 2, 2};
    const parallel::Shard shard = shard_of(placed);
    Optimizer optimizer(std::span(&shard, 1), config, {}, runtime);
    if (rehearsed) optimizer.rehearse();
    const int of_rehearsal = products.take();
    optimizer.find_norm(1);
    optimizer.update({.learning_rate = 0.1});
    EXPECT_EQ(of_rehearsal, rehearsed ? products.take() : 0);
    std::vector<std::vector<double>> all = {to_doubles(placed.parameter.value)};
    for (const Optimizer::State& state : optimizer.states()) all.push_back(to_doubles(state.value));
    return all;
  };
  EXPECT_EQ(updated(true), updated(false));
}

// Rules and learning rates depend on the role, and states on the rule.
TEST(Optimizer, EmbeddingAndOutputAreApart) {
  Runtime runtime({DeviceKind::cpu, 0}, 1);
  parallel::ParameterSpec hidden = make(runtime, 8, 6, DType::bf16, "hidden"),
                          table = make(runtime, 8, 6, DType::bf16, "table");
  table.role = parallel::Role::embedding;
  for (const Method scalar : {Method::adam, Method::lion}) {
    OptimizerConfig config{.method = Method::muon, .exp_avg_type = DType::bf16};
    config.muon_scalar = scalar;
    if (scalar == Method::lion) {
      EXPECT_THROW(config.check(), Error);
      config.exp_avg_type = DType::f32;
    }
    config.check();
    const std::vector<parallel::Shard> shards = {shard_of(hidden), shard_of(table)};
    Optimizer optimizer(shards, config, {}, runtime);
    EXPECT_TRUE(optimizer.state(hidden, "momentum_buffer").defined());
    EXPECT_FALSE(optimizer.state(table, "momentum_buffer").defined());
    EXPECT_EQ(optimizer.state(table, "exp_avg").dtype(), config.exp_avg_type);
    EXPECT_EQ(optimizer.state(table, "exp_avg_sq").defined(), scalar == Method::adam);
    optimizer.find_norm(1);
    const auto before = to_doubles(hidden.parameter.value),
               rows = to_doubles(table.parameter.value);
    optimizer.update({.learning_rate = 0.01, .decoupled_learning_rate = 0});
    EXPECT_NE(to_doubles(hidden.parameter.value), before);
    EXPECT_EQ(to_doubles(table.parameter.value), rows);
    optimizer.update({.learning_rate = 0.01});
    EXPECT_NE(to_doubles(table.parameter.value), rows);
  }
}

TEST(Optimizer, RefusesWhatCannotBe) {
  const auto refused = [](auto&& change) {
    OptimizerConfig config;
    change(config);
    EXPECT_THROW(config.check(), Error);
  };
  refused([](auto& c) { c.lion_beta1 = 1; });
  refused([](auto& c) { c.lion_beta2 = -0.1; });
  refused([](auto& c) { c.muon.momentum = 1; });
  refused([](auto& c) { c.muon.iterations = 0; });
  refused([](auto& c) { c.muon.extra_scale = 0; });
  refused([](auto& c) { c.muon_scalar = Method::sgd; });
  refused([](auto& c) {
    c.method = Method::sgd;
    c.exp_avg_sq_type = DType::bf16;
  });
}

}  // namespace
}  // namespace megatron::optim
