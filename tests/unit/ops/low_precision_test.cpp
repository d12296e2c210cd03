// Products of quantised operands: forward and gradients of a linear layer against their definition,
// by plain loops in fp64.
#include "ops/low_precision.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <optional>

#include "base/philox.h"
#include "ops/expert_rows.h"
#include "ops/linear.h"
#include "ops/linear_cross_entropy.h"

namespace megatron::ops::low_precision_test {
namespace {

constexpr int64_t kTokens = 160, kIn = 256, kOut = 128;

struct Matrix {
  int64_t rows = 0, columns = 0;
  std::vector<double> at;

  double& operator()(int64_t r, int64_t c) { return at[static_cast<size_t>(r * columns + c)]; }
  double operator()(int64_t r, int64_t c) const { return at[static_cast<size_t>(r * columns + c)]; }
};

// Rows of different sizes, so that scales differ.
Matrix drawn(int64_t rows, int64_t columns, const char* name) {
  Matrix m{rows, columns, {}};
  const RandomStream stream(5, name);
  for (int64_t i = 0; i < rows * columns; ++i)
    m.at.push_back(std::ldexp(stream.normal(static_cast<uint64_t>(i)),
                              static_cast<int>(i / columns * 5 % 13 - i % columns % 7)));
  for (double& v : m.at) v = static_cast<float>(bf16(static_cast<float>(v)));
  return m;
}

// The values that the quantised matrix stands for, with one scale for `rows` x `columns` elements.
// type: in which elements and scales are multiplied, f32 or f64.
Matrix quantised(const Matrix& m, LowPrecisionRecipe recipe, LowFormat format, int64_t rows,
                 int64_t columns, DType type) {
  Matrix q = m;
  for (int64_t i = 0; i < m.rows; i += rows)
    for (int64_t j = 0; j < m.columns; j += columns) {
      const auto for_block = [&](auto f) {
        for (int64_t r = i; r < std::min(i + rows, m.rows); ++r)
          for (int64_t c = j; c < std::min(j + columns, m.columns); ++c) f(r, c);
      };
      double amax = 0;
      for_block([&](int64_t r, int64_t c) { amax = std::max(amax, std::abs(m(r, c))); });
      const double largest = facts_of(format).largest;
      double scale = static_cast<float>(largest) / static_cast<float>(amax);
      if (recipe == LowPrecisionRecipe::blockwise) scale = std::exp2(std::floor(std::log2(scale)));
      if (recipe == LowPrecisionRecipe::mxfp8)
        scale = std::exp2(-std::ceil(std::log2(amax / largest)));
      for_block([&](int64_t r, int64_t c) {
        double scaled = m(r, c) * scale;
        if (type == DType::f32) scaled = static_cast<float>(scaled);
        q(r, c) = static_cast<double>(decode(format, encode(format, scaled))) / scale;
      });
    }
  return q;
}

Matrix with_scale(const Matrix& m, LowFormat format, float scale, DType type) {
  Matrix q = m;
  for (double& v : q.at) {
    double scaled = v * scale;
    if (type == DType::f32) scaled = static_cast<float>(scaled);
    v = static_cast<double>(decode(format, encode(format, scaled))) / scale;
  }
  return q;
}

constexpr uint64_t kSeed = 3, kOfInputs = 17, kOfWeights = 18;
constexpr int64_t kSample = 5, kFirstChannel = 64;
constexpr double kDelayed[] = {0.21, 0.37, 0.73};  // scales, by Operand

// The number of 24 bits by which element (r, c) of a gradient is rounded.
double chance(uint64_t stream, int64_t r, int64_t c) {
  const int64_t channel = c + kFirstChannel;
  const uint64_t key = kernels::philox_key(kSeed, stream);
  const PhiloxCounter words =
      philox({static_cast<uint32_t>(channel / 4), static_cast<uint32_t>(r), kSample, 0},
             {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
  return (words[static_cast<size_t>(channel % 4)] >> 8) * 0x1p-24;
}

// A number of e2m1: the neighbour to which `up` of the way leads, or the nearest one, ties to the
// even code.
double e2m1(double x, std::optional<double> u) {
  constexpr double kNumbers[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const double size = std::min(std::abs(x), 6.0);
  size_t low = 0;
  while (low < 6 && kNumbers[low + 1] <= size) ++low;
  const double share = (size - kNumbers[low]) / (kNumbers[low + 1] - kNumbers[low]);
  const bool up = u ? *u < share : share > 0.5 || (share == 0.5 && low % 2 == 1);
  return std::copysign(kNumbers[low + (up ? 1 : 0)], x);
}

// Rows of a matrix: the first row behind each group, and the positions of the rows' tokens.
struct Rows {
  std::vector<int64_t> ends;
  std::vector<int64_t> positions = {};  // empty: the rows themselves

  // Calls f(first, end) for each `height` rows of a group, or fewer at its end.
  template <class F>
  void for_each_block(int64_t height, F f) const {
    int64_t begin = 0;
    for (const int64_t end : ends) {
      for (int64_t i = begin; i < end; i += height) f(i, std::min(i + height, end));
      begin = end;
    }
  }
};

// Each 16 whole rows of a group times the Hadamard matrix with signs, by its definition.
Matrix rotated(const Matrix& m, DType type, const Rows& rows) {
  Matrix out = m;
  rows.for_each_block(16, [&](int64_t first, int64_t end) {
    for (int64_t i = first; end - first == 16 && i < end; ++i)
      for (int64_t c = 0; c < m.columns; ++c) {
        out(i, c) = 0;
        for (int64_t k = 0; k < 16; ++k) {
          const bool minus = (kernels::kHadamardMinus >> k & 1) != 0,
                     odd = std::popcount(static_cast<uint64_t>((i - first) & k)) % 2 == 1;
          out(i, c) += m(first + k, c) * (minus != odd ? -0.25 : 0.25);
        }
        if (type == DType::f32) out(i, c) = static_cast<float>(bf16(static_cast<float>(out(i, c))));
      }
  });
  return out;
}

Matrix nvfp4(const Matrix& m, int64_t height, int64_t width, std::optional<uint64_t> stream,
             DType type, const Rows& rows) {
  Matrix q = m;
  const auto most_of = [&](int64_t i, int64_t end, int64_t j, int64_t behind) {
    double most = 0;
    for (int64_t r = i; r < end; ++r)
      for (int64_t c = j; c < behind; ++c) most = std::max(most, std::abs(m(r, c)));
    return static_cast<float>(most);
  };
  const float scale = 2688 / most_of(0, m.rows, 0, m.columns);
  rows.for_each_block(height, [&](int64_t i, int64_t end) {
    for (int64_t j = 0; j < m.columns; j += width) {
      const int64_t behind = std::min(j + width, m.columns);
      const float part = most_of(i, end, j, behind) * (scale * (1.0F / 6));
      const auto s = static_cast<float>(decode(LowFormat::e4m3, encode(LowFormat::e4m3, part)));
      const float multiplier = s == 0 ? 0 : 1 / (s * (1 / scale));
      for (int64_t r = i; r < end; ++r)
        for (int64_t c = j; c < behind; ++c) {
          double scaled = m(r, c) * multiplier;
          if (type == DType::f32) scaled = static_cast<float>(scaled);
          const int64_t place = rows.positions.empty() ? r : rows.positions[static_cast<size_t>(r)];
          const auto u = stream ? std::optional(chance(*stream, place, c)) : std::nullopt;
          q(r, c) = e2m1(scaled, u) * s / scale;
        }
    }
  });
  return q;
}

struct Layer {
  Matrix x = drawn(kTokens, kIn, "x"), w = drawn(kOut, kIn, "w"), dy = drawn(kTokens, kOut, "dy");
};
struct Results {
  Matrix y, dx, dw;
  std::vector<double> db;
};

// sum over k of a(i, k) b(j, k).
template <class A, class B>
Matrix product(int64_t rows, int64_t columns, int64_t depth, A a, B b) {
  Matrix out{rows, columns, std::vector<double>(static_cast<size_t>(rows * columns))};
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      for (int64_t k = 0; k < depth; ++k) out(i, j) += a(i, k) * b(j, k);
  return out;
}

Results products(const Matrix& x, const Matrix& w, const Matrix& dy, const Matrix& w_down,
                 const Matrix& dy_down, const Matrix& x_down) {
  const auto turned = [](const Matrix& m) {
    return [&m](int64_t i, int64_t k) { return m(k, i); };
  };
  Results r{product(kTokens, kOut, kIn, x, w), product(kTokens, kIn, kOut, dy, turned(w_down)),
            product(kOut, kIn, kTokens, turned(dy_down), turned(x_down)),
            std::vector<double>(kOut)};
  const Matrix plain = Layer().dy;
  for (int64_t t = 0; t < kTokens; ++t)
    for (int64_t j = 0; j < kOut; ++j) r.db[static_cast<size_t>(j)] += plain(t, j);
  return r;
}

Results defined_nvfp4(const Layer& layer, DType type) {
  const Rows tokens{{kTokens}};
  const Matrix w = nvfp4(layer.w, 16, 16, {}, type, {{kOut}}), x = rotated(layer.x, type, tokens),
               dy = rotated(layer.dy, type, tokens);
  return products(nvfp4(layer.x, 1, 16, {}, type, tokens), w,
                  nvfp4(layer.dy, 1, 16, kOfInputs, type, tokens), w,
                  nvfp4(dy, 16, 1, kOfWeights, type, tokens), nvfp4(x, 16, 1, {}, type, tokens));
}

Results defined(const LowPrecisionFormats& f, DType type = DType::f64, const Layer& layer = {}) {
  if (f.recipe == LowPrecisionRecipe::nvfp4) return defined_nvfp4(layer, type);
  // axis: over which the product sums.
  const auto of = [&](const Matrix& m, Operand operand, int axis) {
    const LowFormat format = operand == Operand::gradient ? f.gradient : f.forward;
    if (f.recipe == LowPrecisionRecipe::delayed)
      return with_scale(m, format, static_cast<float>(kDelayed[static_cast<size_t>(operand)]),
                        type);
    if (f.recipe == LowPrecisionRecipe::tensorwise)
      return quantised(m, f.recipe, format, m.rows, m.columns, type);
    const int64_t block = f.recipe == LowPrecisionRecipe::mxfp8 ? 32 : 128;
    const bool square = operand == Operand::weight && f.recipe == LowPrecisionRecipe::blockwise;
    return quantised(m, f.recipe, format, axis == 0 || square ? block : 1,
                     axis == 1 || square ? block : 1, type);
  };
  using enum Operand;
  const Matrix x = of(layer.x, activation, 1), w = of(layer.w, weight, 1),
               dy = of(layer.dy, gradient, 1), w_down = of(layer.w, weight, 0);
  const Matrix dy_down = f.weight_gradients ? of(layer.dy, gradient, 0) : layer.dy,
               x_down = f.weight_gradients ? of(layer.x, activation, 0) : layer.x;
  return products(x, w, dy, w_down, dy_down, x_down);
}

// A low-rank adapter of a frozen weight, and the gradients of its matrices and magnitudes.
struct Adapter {
  static constexpr int64_t kRank = 3;
  static constexpr double kScale = 0.75;
  Matrix a = drawn(kRank, kIn, "a"), b = drawn(kOut, kRank, "b"), m = drawn(kOut, 1, "m");
};

Results computed(const LowPrecisionFormats& formats, DeviceKind device, DType type,
                 const kernels::Table* table = nullptr, Adapter* adapter = nullptr,
                 bool decomposes = false) {
  const Layer layer;
  Runtime runtime({device}, 1);
  const auto tensor = [&](const Shape& shape, DType of, const std::vector<double>& values) {
    Tensor t = Tensor::empty(runtime.arena(MemoryClass::activations), shape, of, "test");
    copy_from(t, std::span<const double>(values));
    return t;
  };
  const auto parameter = [&](const char* name, const Shape& shape, const std::vector<double>& at) {
    Parameter p{.name = name, .value = tensor(shape, type, at)};
    p.uses[0].grad = tensor(shape, kernels::accumulator(type), std::vector<double>(at.size()));
    return p;
  };
  Parameter w = parameter("w", {kOut, kIn}, layer.w.at),
            b = parameter("b", {kOut}, std::vector<double>(kOut));
  w.low_precision =
      LowPrecision{.formats = formats,
                   .chances = {.seed = kSeed, .of_inputs = kOfInputs, .of_weights = kOfWeights}};
  w.low_precision->chances.channels = {1, {{0, kFirstChannel}}};
  const Tensor scales = tensor({3}, DType::f32, {kDelayed[0], kDelayed[1], kDelayed[2]}),
               maxima = tensor({3}, DType::f32, {0, 0, 0});
  w.low_precision->scales = &scales;
  w.low_precision->maxima = &maxima;
  LowRank low_rank{.row_width = kIn};
  Parameter lora_a, lora_b, lora_m;
  if (adapter != nullptr) {
    lora_a = parameter("a", {Adapter::kRank, kIn}, adapter->a.at);
    lora_b = parameter("b", {kOut, Adapter::kRank}, adapter->b.at);
    lora_m = parameter("m", {kOut}, adapter->m.at);
    low_rank.blocks = {{.a = lora_a, .scale = Adapter::kScale, .parts = {{.b = lora_b}}}};
    if (decomposes) low_rank.blocks[0].parts[0].magnitude = lora_m;
    w.trainable = false;
  }
  Tape tape(runtime, Tape::Mode::record, table);
  Tensor sample = Tensor::empty(runtime.arena(MemoryClass::activations), {1}, DType::i64, "test");
  *sample.data<int64_t>() = kSample;
  tape.set_batch_rows({{.sample_ids = sample}, kTokens});
  const Var x = tape.leaf(tensor({kTokens, kIn}, type, layer.x.at));
  const Var y = linear(tape, x, w, b, MemoryClass::activations, low_rank);
  tape.set_gradient(y, tensor({kTokens, kOut}, type, layer.dy.at));
  tape.backward();
  if (adapter != nullptr) {
    adapter->a.at = to_doubles(lora_a.uses[0].grad);
    adapter->b.at = to_doubles(lora_b.uses[0].grad);
    adapter->m.at = to_doubles(lora_m.uses[0].grad);
  }
  return {{kTokens, kOut, to_doubles(y.value)},
          {kTokens, kIn, to_doubles(tape.gradient(x))},
          {kOut, kIn, to_doubles(w.uses[0].grad)},
          to_doubles(b.uses[0].grad)};
}

// Largest distance of an element, relative to the rms of its row.
double difference(const Matrix& a, const Matrix& b) {
  double worst = 0;
  for (int64_t r = 0; r < a.rows; ++r) {
    double squares = 0;
    for (int64_t c = 0; c < a.columns; ++c) squares += b(r, c) * b(r, c);
    const double rms = std::sqrt(squares / static_cast<double>(a.columns));
    for (int64_t c = 0; c < a.columns; ++c)
      if (a(r, c) != b(r, c))
        worst = std::max(worst, std::abs(a(r, c) - b(r, c)) / std::max(rms, std::abs(b(r, c))));
  }
  return worst;
}
double difference(const Results& a, const Results& b) {
  return std::max({difference(a.y, b.y), difference(a.dx, b.dx), difference(a.dw, b.dw),
                   difference(Matrix{1, kOut, a.db}, Matrix{1, kOut, b.db})});
}

// Experts in fp4, one of them without tokens and one with blocks of rows that are not whole, and
// rows of no expert.
struct Experts {
  static constexpr int64_t kExperts = 4, kRows = 60, kWidth = 40, kDepth = 48;
  std::vector<int64_t> begins = {0, 21, 21, 37, 56};  // rows of the experts, and where they end
  Rows tokens{{21, 37, 56, 60}};
  Matrix x = drawn(kRows, kDepth, "x"), w = drawn(kExperts * kWidth, kDepth, "w"),
         dy = drawn(kRows, kWidth, "dy");

  Experts() {
    for (int64_t r = 0; r < kRows; ++r) {
      tokens.positions.push_back(r * 7 % 61);
      for (int64_t c = 0; r >= 56 && c < kDepth; ++c) x(r, c) = 0;
      for (int64_t c = 0; r >= 56 && c < kWidth; ++c) dy(r, c) = 0;
    }
  }
};
struct ExpertResults {
  Matrix y, dx, dw;
};

ExpertResults defined_experts(DType type) {
  using E = Experts;
  const E e;
  const Rows &rows = e.tokens, matrices{{40, 80, 120, 160}};
  const Matrix w = nvfp4(e.w, 16, 16, {}, type, matrices), x = nvfp4(e.x, 1, 16, {}, type, rows),
               dy = nvfp4(e.dy, 1, 16, kOfInputs, type, rows),
               x_down = nvfp4(rotated(e.x, type, rows), 16, 1, {}, type, rows),
               dy_down = nvfp4(rotated(e.dy, type, rows), 16, 1, kOfWeights, type, rows);
  const auto zeros = [](int64_t count, int64_t width) {
    return Matrix{count, width, std::vector<double>(static_cast<size_t>(count * width))};
  };
  ExpertResults out{zeros(E::kRows, E::kWidth), zeros(E::kRows, E::kDepth),
                    zeros(E::kExperts * E::kWidth, E::kDepth)};
  for (size_t g = 0; g < E::kExperts; ++g)
    for (int64_t r = e.begins[g]; r < e.begins[g + 1]; ++r)
      for (int64_t i = 0, row = static_cast<int64_t>(g) * E::kWidth; i < E::kWidth; ++i, ++row)
        for (int64_t j = 0; j < E::kDepth; ++j) {
          out.y(r, i) += x(r, j) * w(row, j);
          out.dx(r, j) += dy(r, i) * w(row, j);
          out.dw(row, j) += dy_down(r, i) * x_down(r, j);
        }
  return out;
}

ExpertResults computed_experts(DeviceKind device, DType type) {
  using E = Experts;
  const E e;
  Runtime runtime({device}, 1);
  const auto tensor = [&](const Shape& shape, DType of, const std::vector<double>& values) {
    Tensor t = Tensor::empty(runtime.arena(MemoryClass::activations), shape, of, "test");
    copy_from(t, std::span<const double>(values));
    return t;
  };
  const auto integers = [&](DType of, const std::vector<int64_t>& values) {
    return tensor({std::ssize(values)}, of, std::vector<double>(values.begin(), values.end()));
  };
  const Shape shape{E::kExperts, E::kWidth, E::kDepth};
  Parameter w{.name = "w", .value = tensor(shape, type, e.w.at)};
  w.uses[0].grad = tensor(shape, kernels::accumulator(type), std::vector<double>(e.w.at.size()));
  w.low_precision =
      LowPrecision{.formats = {LowPrecisionRecipe::nvfp4, LowFormat::e2m1, LowFormat::e2m1},
                   .chances = {.seed = kSeed, .of_inputs = kOfInputs, .of_weights = kOfWeights}};
  w.low_precision->chances.channels = {1, {{0, kFirstChannel}}};
  Tape tape(runtime, Tape::Mode::record);
  tape.set_batch_rows({{.sample_ids = integers(DType::i64, std::vector<int64_t>(E::kRows, kSample)),
                        .positions = integers(DType::i32, e.tokens.positions),
                        .length = 1},
                       E::kRows});
  const Var x = tape.leaf(tensor({E::kRows, E::kDepth}, type, e.x.at));
  const Var y = grouped_linear(tape, x, w, {}, integers(DType::i32, e.begins));
  tape.set_gradient(y, tensor({E::kRows, E::kWidth}, type, e.dy.at));
  tape.backward();
  return {{E::kRows, E::kWidth, to_doubles(y.value)},
          {E::kRows, E::kDepth, to_doubles(tape.gradient(x))},
          {E::kExperts * E::kWidth, E::kDepth, to_doubles(w.uses[0].grad)}};
}

double difference(const ExpertResults& a, const ExpertResults& b) {
  return std::max({difference(a.y, b.y), difference(a.dx, b.dx), difference(a.dw, b.dw)});
}

// As for linear layers, below.
TEST(LowPrecisionExperts, AreProductsOfQuantisedValues) {
  EXPECT_LT(
      difference(computed_experts(DeviceKind::reference, DType::f64), defined_experts(DType::f64)),
      1e-11);
  EXPECT_LT(difference(computed_experts(DeviceKind::cpu, DType::bf16), defined_experts(DType::f32)),
            0x1p-8 + 0x1p-12);
}

constexpr LowPrecisionFormats kAll[] = {
    {LowPrecisionRecipe::tensorwise},
    {LowPrecisionRecipe::blockwise, LowFormat::e4m3, LowFormat::e4m3},
    {LowPrecisionRecipe::mxfp8},
    {LowPrecisionRecipe::mxfp8, LowFormat::e4m3, LowFormat::e4m3, false},
    {LowPrecisionRecipe::delayed},
    {LowPrecisionRecipe::nvfp4, LowFormat::e2m1, LowFormat::e2m1}};

TEST(LowPrecisionLinear, IsTheProductOfQuantisedValues) {
  for (const LowPrecisionFormats& f : kAll)
    EXPECT_LT(difference(computed(f, DeviceKind::reference, DType::f64), defined(f)), 1e-11)
        << name(f.recipe);
}

// In bf16 the operands are exact. A result of bf16 is rounded once, by 2^-8 of its upper
// neighbour's size at most; a sum of 256 f32 terms is within 256 * 2^-24 of the norm of its terms.
TEST(LowPrecisionLinear, IsRoundedOnceOnTheCpu) {
  for (const LowPrecisionFormats& f : kAll)
    EXPECT_LT(difference(computed(f, DeviceKind::cpu, DType::bf16), defined(f, DType::f32)),
              0x1p-8 + 0x1p-12)
        << name(f.recipe);
}

// The results of a layer with an adapter, whose gradients replace it: the frozen matrix, or the one
// that magnitudes make, is quantised; the low-rank products and all gradients of the adapter are
// not.
Results adapted(const LowPrecisionFormats& f, Adapter& adapter, bool decomposes) {
  Layer layer;
  const Matrix a = adapter.a, b = adapter.b, m = adapter.m;
  Matrix added = product(kOut, kIn, Adapter::kRank, b,
                         [&](int64_t i, int64_t k) { return Adapter::kScale * a(k, i); });
  Matrix g = product(
      kOut, kIn, kTokens, [&](int64_t i, int64_t k) { return layer.dy(k, i); },
      [&](int64_t i, int64_t k) { return layer.x(k, i); });
  for (int64_t i = 0; decomposes && i < kOut; ++i) {
    double squares = 0, along = 0;
    for (int64_t j = 0; j < kIn; ++j) {
      added(i, j) += layer.w(i, j);
      squares += added(i, j) * added(i, j);
    }
    const double length = std::sqrt(squares);
    for (int64_t j = 0; j < kIn; ++j) {
      layer.w(i, j) = m(i, 0) * added(i, j) / length;
      along += g(i, j) * added(i, j) / length;
      g(i, j) *= m(i, 0) / length;
    }
    adapter.m(i, 0) = along;
  }
  const auto scaled = [&](int64_t i, int64_t k) { return Adapter::kScale * g(i, k); };
  adapter.a = product(
      Adapter::kRank, kIn, kOut, [&](int64_t i, int64_t k) { return b(k, i); },
      [&](int64_t i, int64_t k) { return scaled(k, i); });
  adapter.b = product(kOut, Adapter::kRank, kIn, scaled, a);
  Results r = defined(f, DType::f64, layer);
  r.dw.at.assign(r.dw.at.size(), 0);
  if (decomposes) return r;
  adapter.m.at.assign(kOut, 0);
  const Matrix y = product(kTokens, kOut, kIn, layer.x, added),
               dx = product(kTokens, kIn, kOut, layer.dy,
                            [&](int64_t i, int64_t k) { return added(k, i); });
  for (size_t i = 0; i < y.at.size(); ++i) r.y.at[i] += y.at[i];
  for (size_t i = 0; i < dx.at.size(); ++i) r.dx.at[i] += dx.at[i];
  return r;
}

TEST(LowPrecisionLinear, LeavesLowRankProductsInTheTypeOfTheModel) {
  for (const bool decomposes : {false, true}) {
    const LowPrecisionFormats& f = decomposes ? kAll[5] : kAll[0];
    Adapter found, expected;
    const Results results =
        computed(f, DeviceKind::reference, DType::f64, nullptr, &found, decomposes);
    EXPECT_LT(difference(results, adapted(f, expected, decomposes)), 1e-11) << name(f.recipe);
    EXPECT_LT(difference(found.a, expected.a), 1e-11) << name(f.recipe);
    EXPECT_LT(difference(found.b, expected.b), 1e-11) << name(f.recipe);
    EXPECT_LT(difference(found.m, expected.m), 1e-11) << name(f.recipe);
  }
}

// The loss of an output layer, in two chunks of tokens, whose three products are quantised.
TEST(LowPrecisionLoss, IsThatOfQuantisedProducts) {
  constexpr int64_t kRows = 4096 + 64, kHidden = 32, kWords = 64;
  constexpr auto kRecipe = LowPrecisionRecipe::mxfp8;
  const auto normal = [](int64_t rows, int64_t columns, const char* name) {
    Matrix m{rows, columns, std::vector<double>(static_cast<size_t>(rows * columns))};
    const RandomStream stream(6, name);
    for (size_t i = 0; i < m.at.size(); ++i) m.at[i] = stream.normal(i) * 0.7;
    return m;
  };
  const Matrix x = normal(kRows, kHidden, "x"), w = normal(kWords, kHidden, "w");
  const auto of = [](const Matrix& m, LowFormat format, int axis) {
    return quantised(m, kRecipe, format, axis == 0 ? 32 : 1, axis == 0 ? 1 : 32, DType::f64);
  };
  const Matrix logits =
      product(kRows, kWords, kHidden, of(x, LowFormat::e4m3, 1), of(w, LowFormat::e4m3, 1));
  Matrix loss{1, kRows, {}}, dlogits = logits;
  std::vector<double> weights;
  for (int64_t t = 0; t < kRows; ++t) {
    double sum = 0;
    for (int64_t v = 0; v < kWords; ++v) sum += std::exp(logits(t, v));
    loss.at.push_back(std::log(sum) - logits(t, t % kWords));
    weights.push_back(1 + static_cast<double>(t % 3));
    for (int64_t v = 0; v < kWords; ++v)
      dlogits(t, v) = weights.back() * (std::exp(logits(t, v)) / sum - (v == t % kWords ? 1 : 0));
  }
  const auto turned = [](const Matrix& m) {
    return [&m](int64_t i, int64_t k) { return m(k, i); };
  };
  const Matrix w_down = of(w, LowFormat::e4m3, 0), d_down = of(dlogits, LowFormat::e5m2, 0),
               x_down = of(x, LowFormat::e4m3, 0),
               dx =
                   product(kRows, kHidden, kWords, of(dlogits, LowFormat::e5m2, 1), turned(w_down)),
               dw = product(kWords, kHidden, kRows, turned(d_down), turned(x_down));

  Runtime runtime({DeviceKind::reference}, 1);
  const auto tensor = [&](const Shape& shape, const std::vector<double>& values) {
    Tensor t = Tensor::empty(runtime.arena(MemoryClass::activations), shape, DType::f64, "test");
    copy_from(t, std::span<const double>(values));
    return t;
  };
  Parameter table{.name = "w", .value = tensor({kWords, kHidden}, w.at)};
  table.uses[0].grad = tensor({kWords, kHidden}, std::vector<double>(w.at.size()));
  table.low_precision = LowPrecision{.formats = {kRecipe}};
  Tensor labels =
      Tensor::empty(runtime.arena(MemoryClass::activations), {kRows}, DType::i32, "test");
  for (int64_t t = 0; t < kRows; ++t) labels.data<int32_t>()[t] = static_cast<int32_t>(t % kWords);
  Tape tape(runtime, Tape::Mode::record);
  const Var input = tape.leaf(tensor({kRows, kHidden}, x.at));
  const Tensor found = linear_cross_entropy(tape, input, table, labels, tensor({kRows}, weights));
  tape.backward();
  EXPECT_LT(difference({1, kRows, to_doubles(found)}, loss), 1e-11);
  EXPECT_LT(difference({kRows, kHidden, to_doubles(tape.gradient(input))}, dx), 1e-11);
  EXPECT_LT(difference({kWords, kHidden, to_doubles(table.uses[0].grad)}, dw), 1e-11);
}

void in_forward_format(const kernels::QuantizeArgs& args, Stream& stream) {
  kernels::QuantizeArgs changed = args;
  changed.format = LowFormat::e4m3;
  kernels::table(DeviceKind::reference).quantize(changed, stream);
}
void along_other_axis(const kernels::QuantizeArgs& args, Stream& stream) {
  kernels::QuantizeArgs changed = args;
  std::swap(changed.out.rows, changed.out.columns);
  kernels::table(DeviceKind::reference).quantize(changed, stream);
}
void without_scale(const kernels::GemmArgs& args, Stream& stream) {
  kernels::GemmArgs changed = args;
  if (args.transpose_a) changed.b_scale = changed.a_scale;
  kernels::table(DeviceKind::reference).gemm(changed, stream);
}

// Faults: gradients in the format of weights, transposed scales, the scale of the wrong operand.
TEST(LowPrecisionLinear, FaultsAreFound) {
  const auto found = [](const LowPrecisionFormats& f, auto entry, auto changed) {
    kernels::Table table = kernels::table(DeviceKind::reference);
    table.*entry = changed;
    return difference(computed(f, DeviceKind::reference, DType::f64, &table), defined(f));
  };
  using kernels::Table;
  for (const LowPrecisionFormats& f : {kAll[0], kAll[2]})
    EXPECT_GT(found(f, &Table::quantize, in_forward_format), 1e-3) << name(f.recipe);
  for (const LowPrecisionFormats& f : {kAll[1], kAll[2]})
    EXPECT_GT(found(f, &Table::quantize, along_other_axis), 1e-3) << name(f.recipe);
  EXPECT_GT(found(kAll[0], &Table::gemm, without_scale), 1e-3);
}

}  // namespace
}  // namespace megatron::ops::low_precision_test
