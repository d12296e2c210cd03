// Low-rank additions to a matrix: products and gradients are those of the matrix with the addition.
#include "ops/low_rank.h"

#include <gtest/gtest.h>

#include "base/philox.h"
#include "ops/elementwise.h"
#include "ops/linear.h"
#include "ops/scale.h"

namespace megatron::ops::low_rank_test {
namespace {

constexpr int64_t kTokens = 6, kIn = 5, kOut = 7;
constexpr double kRounding = 1e-13;

using Values = std::vector<double>;

// Element [row, column] of a matrix with this many columns.
size_t at(int64_t row, int64_t column, int64_t columns) {
  return static_cast<size_t>(row * columns + column);
}

class LowRankTest : public ::testing::Test {
 protected:
  Tensor drawn(const Shape& shape, const std::string& name) {
    Tensor t = Tensor::empty(runtime_.arena(MemoryClass::activations), shape, DType::f64, name);
    Values values;
    for (int64_t i = 0; i < shape.elements(); ++i)
      values.push_back(RandomStream(7, name).normal(static_cast<uint64_t>(i)));
    copy_from(t, std::span<const double>(values));
    return t;
  }
  Parameter parameter(const std::string& name, const Shape& shape) {
    Parameter p{.name = name, .value = drawn(shape, name)};
    p.uses[0].grad = drawn(shape, name + " before");
    return p;
  }
  LowRank adapter() {
    return {{{a_, 0.5, {{b_[0], 0, 0}, {b_[1], 3, 2, bias_}}}, {other_a_, 2, {{b_[2], 2, 0}}}}};
  }

  struct Results {
    Values y, dx, dw;
    std::vector<Values> adapters;  // gradients of the adapters' matrices
    bool operator==(const Results&) const = default;
  };
  // backward: runs the gradients of a tape. needs_dx: if x has a gradient.
  Results run(const LowRank& added, const std::function<void(Tape&)>& backward,
              bool needs_dx = true, int passes = 1) {
    Results results;
    for (Parameter* p : all()) p->uses[0].started = false;
    for (int i = 0; i < passes; ++i) {
      Tape tape(runtime_);
      const Var x = needs_dx ? tape.leaf(x_) : Var(x_);
      const Var y = linear(tape, x, w_, {}, MemoryClass::activations, added);
      tape.set_gradient(y, dy_);
      backward(tape);
      results.y = to_doubles(y.value);
      if (needs_dx) results.dx = to_doubles(tape.gradient(x));
    }
    results.dw = to_doubles(w_.uses[0].grad);
    for (Parameter* p : all())
      if (p != &w_) results.adapters.push_back(to_doubles(p->uses[0].grad));
    return results;
  }
  std::vector<Parameter*> all() { return {&w_, &a_, &other_a_, &b_[0], &b_[1], &b_[2], &bias_}; }

  Runtime runtime_{{DeviceKind::reference, 0}, 1};
  Tensor x_ = drawn({kTokens, kIn}, "x"), dy_ = drawn({kTokens, kOut}, "dy");
  Parameter w_ = parameter("w", {kOut, kIn}), a_ = parameter("a", {5, kIn}),
            other_a_ = parameter("other a", {2, kIn});
  Parameter b_[3] = {parameter("b 0", {3, 2}), parameter("b 1", {4, 3}), parameter("b 2", {2, 2})};
  Parameter bias_ = parameter("bias of b 1", {4});
};

void backward(Tape& tape) { tape.backward(); }

void expect_near(const Values& found, const Values& expected, const char* what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], expected[i], kRounding * std::max(1.0, std::abs(expected[i])))
        << what << " " << i;
}

TEST_F(LowRankTest, AddsToTheMatrix) {
  const Results found = run(adapter(), backward);
  // w + scale b a, whose gradient g gives scale b^T g and scale g a^T.
  const LowRank added = adapter();
  Values merged = to_doubles(w_.value);
  for (const LowRank::Block& block : added.blocks) {
    const Values a = to_doubles(block.a.value());
    for (const LowRank::Part& part : block.parts) {
      const Values b = to_doubles(part.b.value());
      const int64_t rows = part.b.value().size(0), rank = part.b.value().size(1);
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < kIn; ++j)
          for (int64_t k = 0; k < rank; ++k)
            merged[at(part.row + i, j, kIn)] +=
                block.scale * b[at(i, k, rank)] * a[at(part.first + k, j, kIn)];
    }
  }
  const Values bias = to_doubles(bias_.value), dy = to_doubles(dy_),
               bias_gradient = to_doubles(bias_.uses[0].grad);
  copy_from(w_.value, std::span<const double>(merged));
  Results expected = run({}, backward);
  Values dbias(bias.size());
  for (size_t i = 0; i < bias.size(); ++i) {
    for (int64_t t = 0; t < kTokens; ++t) {
      const size_t place = at(t, 3 + static_cast<int64_t>(i), kOut);
      expected.y[place] += 0.5 * bias[i];
      dbias[i] += 0.5 * dy[place];
    }
  }
  expect_near(bias_gradient, dbias, "gradient of the bias");
  expect_near(found.y, expected.y, "y");
  expect_near(found.dx, expected.dx, "dx");
  expect_near(found.dw, expected.dw, "dw");
  for (const LowRank::Block& block : added.blocks) {
    const Values a = to_doubles(block.a.value());
    Values da(a.size());
    for (const LowRank::Part& part : block.parts) {
      const Values b = to_doubles(part.b.value());
      const int64_t rows = part.b.value().size(0), rank = part.b.value().size(1);
      Values db(b.size());
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < kIn; ++j) {
          for (int64_t k = 0; k < rank; ++k) {
            const double g = block.scale * expected.dw[at(part.row + i, j, kIn)];
            db[at(i, k, rank)] += g * a[at(part.first + k, j, kIn)];
            da[at(part.first + k, j, kIn)] += g * b[at(i, k, rank)];
          }
        }
      }
      expect_near(to_doubles(part.b.parameter->uses[0].grad), db, "db");
    }
    expect_near(to_doubles(block.a.parameter->uses[0].grad), da, "da");
  }
}

// On ranks whose results are summed, one adds the bias; the gradients of the others are summed with
// its gradient.
TEST_F(LowRankTest, ABiasThatAnotherRankAddsHasAGradientOfZero) {
  const Results adds = run(adapter(), backward);
  LowRank other = adapter();
  other.blocks[0].parts[1].adds_bias = false;
  const Results does_not = run(other, backward, true, 2);
  for (size_t i = 0; i < adds.y.size(); ++i) {
    const int64_t row = static_cast<int64_t>(i) % kOut - 3;
    const double bias = row < 0 ? 0 : to_doubles(bias_.value)[static_cast<size_t>(row)];
    EXPECT_NEAR(adds.y[i] - does_not.y[i], 0.5 * bias, kRounding * 10) << i;
  }
  EXPECT_EQ(does_not.adapters.back(), Values(4, 0.0));
}

TEST_F(LowRankTest, WeightGradientsCanRunLaterAndAlone) {
  const Results expected = run(adapter(), backward);
  const Results apart = run(adapter(), [&](Tape& tape) {
    tape.backward(BackwardPart::input);
    for (Parameter* p : all()) EXPECT_FALSE(p->uses[0].started) << p->name;
    tape.backward(BackwardPart::weight);
  });
  EXPECT_EQ(apart, expected);
  Results of_constant = run(adapter(), backward, false);
  of_constant.dx = expected.dx;
  EXPECT_EQ(of_constant, expected);
}

TEST_F(LowRankTest, FollowingMicroBatchesAddToTheGradients) {
  const Results once = run(adapter(), backward), thrice = run(adapter(), backward, true, 3);
  EXPECT_EQ(thrice.y, once.y);
  EXPECT_EQ(thrice.dx, once.dx);
  for (size_t m = 0; m < once.adapters.size(); ++m) {
    Values expected = once.adapters[m];
    for (double& value : expected) value *= 3;
    expect_near(thrice.adapters[m], expected, "gradient of an adapter's matrix");
  }
}

TEST_F(LowRankTest, FrozenMatricesAreLeftAlone) {
  const Results expected = run(adapter(), backward);
  for (Parameter* frozen : all()) {
    frozen->trainable = false;
    const Values before = to_doubles(frozen->uses[0].grad);
    const Results found = run(adapter(), backward);
    EXPECT_EQ(to_doubles(frozen->uses[0].grad), before);
    EXPECT_FALSE(frozen->uses[0].started) << frozen->name;
    EXPECT_EQ(found, expected) << frozen->name;
    frozen->trainable = true;
  }
}

// With dropout, an adapter adds what it makes of the dropped x: that of a product with an adapter
// less that of the product alone.
TEST_F(LowRankTest, DropoutIsOfTheAdaptersInputAlone) {
  w_.trainable = false;
  Parameter m = parameter("magnitudes", {kOut}), all_b = parameter("b of all rows", {kOut, 5});
  const LowRank decomposed{{{a_, 0.5, {{.b = all_b, .magnitude = m}}}}, kIn};
  for (LowRank added : {adapter(), decomposed}) {
    std::vector<Parameter*> trained = {&m, &all_b};
    for (Parameter* p : all()) trained.push_back(p);
    Tensor samples = Tensor::empty(runtime_.arena(MemoryClass::activations), {2}, DType::i64, "s");
    const int64_t numbers[] = {3, 8};
    copy_bytes_from(samples, std::as_bytes(std::span(numbers)));
    const kernels::DropoutArgs::Mask mask{
        .p = 0.5f, .seed = 2, .stream = 9, .rows = {.sample_ids = samples}};
    const auto results = [&](bool composed) {
      for (Parameter* p : trained) p->uses[0].started = false;
      Tape tape(runtime_);
      const Var x = tape.leaf(x_);
      Var y;
      if (composed) {
        const Var dropped = dropout(tape, x, mask);
        const Var alone = linear(tape, dropped, w_);
        y = add(tape, linear(tape, x, w_),
                add(tape, linear(tape, dropped, w_, {}, MemoryClass::activations, added),
                    scale(tape, alone, -1)));
      } else {
        LowRank dropping = added;
        dropping.dropout = {.p = mask.p, .seed = mask.seed, .stream = mask.stream};
        tape.set_batch_rows({mask.rows, kTokens});
        y = linear(tape, x, w_, {}, MemoryClass::activations, dropping);
      }
      tape.set_gradient(y, dy_);
      tape.backward();
      std::vector<Values> values = {to_doubles(y.value), to_doubles(tape.gradient(x))};
      for (Parameter* p : trained) values.push_back(to_doubles(p->uses[0].grad));
      return values;
    };
    const std::vector<Values> found = results(false), expected = results(true);
    EXPECT_NE(found[0], run(added, backward).y);
    for (size_t i = 0; i < expected.size(); ++i)
      expect_near(found[i], expected[i], i < 2 ? "y or dx" : "gradient");
  }
}

// The blocks of an adapter add to some of the same columns, one after the other.
TEST_F(LowRankTest, SeveralAddWhatEachAddsAlone) {
  for (const DeviceKind device : {DeviceKind::reference, DeviceKind::cpu}) {
    Runtime runtime({device, 0}, 2);
    Tape tape(runtime, Tape::Mode::infer);
    const auto rows_of = [&](const Tensor& t) {
      Tensor copy =
          Tensor::empty(runtime.arena(MemoryClass::activations), t.shape(), DType::f32, "t");
      copy_from(copy, std::span<const double>(to_doubles(t)));
      return copy;
    };
    std::vector<Parameter> held;
    held.reserve(12);
    const auto weight = [&](const Parameter& p, uint64_t number) {
      held.push_back({.name = p.name,
                      .value = rows_of(drawn(p.value.shape(), p.name + std::to_string(number)))});
      return Weight(held.back());
    };
    std::vector<LowRank> adapters;
    for (const uint64_t number : {1, 2})
      adapters.push_back({{{weight(a_, number),
                            0.5,
                            {{weight(b_[0], number), 0, 0}, {weight(b_[1], number), 3, 2}}},
                           {weight(other_a_, number), 2, {{weight(b_[2], number), 2, 0}}}}});
    const Tensor x = rows_of(x_), alone = rows_of(dy_), together = rows_of(dy_);
    std::vector<AdaptedRows> rows;
    for (size_t i = 0; i < adapters.size(); ++i) {
      const int64_t first = static_cast<int64_t>(i) * 2;
      const auto part = [&](const Tensor& t) { return t.slice(0, first, 2); };
      add_low_rank(tape, adapters[i], part(x), part(alone));
      rows.push_back({&adapters[i], part(x), part(together)});
    }
    add_low_rank(tape, rows);
    EXPECT_EQ(to_doubles(together), to_doubles(alone));
    EXPECT_NE(to_doubles(together), to_doubles(rows_of(dy_)));
  }
}

// A rank with some of the columns drops what the others would.
TEST_F(LowRankTest, DropoutOfSomeColumnsIsThatOfAll) {
  Tape tape(runtime_);
  Tensor samples = Tensor::empty(runtime_.arena(MemoryClass::activations), {1}, DType::i64, "s");
  const int64_t number = 5;
  copy_bytes_from(samples, std::as_bytes(std::span(&number, 1)));
  tape.set_batch_rows({{.sample_ids = samples}, kTokens});
  const Tensor wide = drawn({kTokens, 12}, "wide");
  LowRank added = adapter();
  added.dropout = {.p = 0.5f, .seed = 2, .stream = 9};
  const Tensor all = low_rank_input(added, tape, wide);
  for (int64_t first = 0; first < 7; ++first) {
    const Tensor columns = tape.empty({kTokens, 5}, DType::f64, "columns");
    tape.kernels().copy({.x = wide.slice(1, first, 5), .out = columns}, tape.stream());
    added.dropout.first_channel = first;
    EXPECT_EQ(to_doubles(low_rank_input(added, tape, columns)), to_doubles(all.slice(1, first, 5)));
  }
}

}  // namespace
}  // namespace megatron::ops::low_rank_test
