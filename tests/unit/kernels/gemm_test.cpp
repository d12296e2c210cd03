#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <tuple>

#include "amx_emulator.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/products/few_rows.h"
#include "unit/kernels/instruction_sets.h"

namespace megatron::kernels::cpu {
namespace {

constexpr Device kCpu{DeviceKind::cpu, 0};

class ProductMaker {
 public:
  explicit ProductMaker(int threads = 2) : runtime_(kCpu, threads) {}
  Stream& stream() { return runtime_.stream(); }

  Tensor empty(Shape shape, DType type) {
    return Tensor::empty(runtime_.arena(MemoryClass::activations), shape, type, "test");
  }

  // Normal values in a matrix whose rows are followed by `padding` unused elements.
  Tensor matrix(Shape shape, DType type, int64_t padding = 0) {
    Shape wide = shape;
    wide.set(-1, shape[-1] + padding);
    Tensor t = empty(wide, type);
    std::vector<double> values(static_cast<size_t>(t.elements()));
    std::normal_distribution<double> normal;
    for (double& v : values) v = normal(random_);
    copy_from(t, std::span<const double>(values));
    return t.slice(shape.rank() - 1, 0, shape[-1]);
  }

 private:
  Runtime runtime_;
  std::mt19937_64 random_{7};
};

double at(const std::vector<double>& v, int64_t i) { return v[static_cast<size_t>(i)]; }

std::vector<double> naive(const GemmArgs& args) {
  const auto a = to_doubles(args.a), b = to_doubles(args.b), before = to_doubles(args.out);
  const auto bias = args.bias.defined() ? to_doubles(args.bias) : std::vector<double>();
  const int64_t groups = args.out.rank() == 3 ? args.out.size(0) : 1;
  const int64_t m = args.out.size(-2), n = args.out.size(-1),
                k = args.a.size(args.transpose_a ? -2 : -1);
  std::vector<double> out(before.size());
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = bias.empty() ? 0 : at(bias, j);
        for (int64_t l = 0; l < k; ++l) {
          sum += at(a, g * m * k + (args.transpose_a ? l * m + i : i * k + l)) *
                 at(b, g * n * k + (args.transpose_b ? j * k + l : l * n + j));
        }
        const int64_t index = (g * m + i) * n + j;
        out[static_cast<size_t>(index)] = sum + (args.beta == 0 ? 0 : at(before, index));
      }
    }
  }
  return out;
}

// Largest error relative to the element and the root mean square of the reference.
double error(const std::vector<double>& got, const std::vector<double>& want) {
  double worst = 0, square = 1e-300;
  for (const double w : want) square += w * w / static_cast<double>(want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const double e = std::abs(got[i] - want[i]) / (std::abs(want[i]) + std::sqrt(square));
    worst = std::isnan(e) ? INFINITY : std::max(worst, e);
  }
  return worst;
}

double tolerance(DType out) { return out == DType::f64 ? 1e-13 : out == DType::f32 ? 1e-5 : 0.004; }

struct Types {
  DType in, out;
  Bf16Products products;
};
std::vector<Types> all_types() {
  std::vector<Types> list = {{DType::f64, DType::f64, Bf16Products::widened},
                             {DType::f32, DType::f32, Bf16Products::widened}};
  for (const Bf16Products products : bf16_ways()) {
    list.push_back({DType::bf16, DType::bf16, products});
    list.push_back({DType::bf16, DType::f32, products});
  }
  return list;
}
std::string str(const Types& types) {
  return std::string(name(types.in)) + " to " + std::string(name(types.out)) + " " +
         str(types.products);
}

void run(const GemmArgs& args, Stream& stream, const Types& types) {
  const UseBf16Products use(types.products);
  gemm(args, stream);
}

struct Sizes {
  int64_t m, n, k;
};

void copy_element(const Tensor& from, int64_t i, const Tensor& to, int64_t j) {
  const auto size = static_cast<size_t>(size_of(from.dtype()));
  std::memcpy(static_cast<std::byte*>(to.raw()) + static_cast<size_t>(j) * size,
              static_cast<const std::byte*>(from.raw()) + static_cast<size_t>(i) * size, size);
}

class GemmShapes : public ::testing::TestWithParam<Sizes> {};

TEST_P(GemmShapes, MatchesPlainLoops) {
  const auto [m, n, k] = GetParam();
  ProductMaker maker;
  for (const Types& types : all_types()) {
    for (int variant = 0; variant < 16; ++variant) {
      GemmArgs args;
      args.transpose_a = variant & 1;
      args.transpose_b = variant & 2;
      args.beta = variant & 4 ? 1 : 0;
      const int64_t padding = variant & 8 ? 3 : 0;
      args.a = maker.matrix(args.transpose_a ? Shape{k, m} : Shape{m, k}, types.in, padding);
      args.b = maker.matrix(args.transpose_b ? Shape{n, k} : Shape{k, n}, types.in, padding);
      args.out = maker.matrix({m, n}, types.out, padding);
      if (variant & 8) args.bias = maker.matrix({n}, types.in);
      const auto want = naive(args);
      run(args, maker.stream(), types);
      EXPECT_LE(error(to_doubles(args.out), want), tolerance(types.out))
          << m << "x" << n << "x" << k << " " << str(types) << " variant " << variant;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, GemmShapes,
                         ::testing::Values(Sizes{1, 1, 1}, Sizes{1, 50, 33}, Sizes{7, 1, 16},
                                           Sizes{3, 5, 7}, Sizes{64, 64, 64}, Sizes{65, 97, 31},
                                           Sizes{130, 129, 1}, Sizes{5, 401, 65}, Sizes{0, 4, 3},
                                           Sizes{4, 0, 3}, Sizes{33, 17, 0}));

TEST(Gemm, SumsOverADepthOfSeveralBlocks) {
  ProductMaker maker;
  for (const Types& types : all_types()) {
    GemmArgs args;
    args.a = maker.matrix({6, 2500}, types.in);
    args.b = maker.matrix({2500, 9}, types.in);
    args.out = maker.matrix({6, 9}, types.out);
    args.beta = 1;
    const auto want = naive(args);
    run(args, maker.stream(), types);
    EXPECT_LE(error(to_doubles(args.out), want), tolerance(types.out));
  }
}

TEST(Gemm, BatchesAndRepeatsMatrices) {
  ProductMaker maker;
  for (const Types& types : all_types()) {
    GemmArgs args;
    args.a = maker.matrix({3, 10, 8}, types.in);
    const Tensor once = maker.matrix({8, 12}, types.in);
    args.b = once.as_strided({3, 8, 12}, std::array<int64_t, 3>{0, 12, 1});
    args.out = maker.matrix({3, 10, 12}, types.out, 5);
    const auto want = naive(args);
    run(args, maker.stream(), types);
    EXPECT_LE(error(to_doubles(args.out), want), tolerance(types.out));
  }
}

TEST(Gemm, ReadsRowsThatOverlapOrRepeat) {
  ProductMaker maker;
  for (const Types& types : all_types()) {
    const Tensor data = maker.matrix({200}, types.in);
    for (const int64_t stride : {0, 1, 5}) {
      GemmArgs args;
      args.a = data.as_strided({9, 16}, std::array<int64_t, 2>{stride, 1});
      args.b = maker.matrix({16, 4}, types.in);
      args.out = maker.matrix({9, 4}, types.out);
      const auto want = naive(args);
      run(args, maker.stream(), types);
      EXPECT_LE(error(to_doubles(args.out), want), tolerance(types.out)) << "stride " << stride;
    }
  }
}

TEST(Gemm, LeavesWhatLiesBetweenRowsAlone) {
  ProductMaker maker;
  Tensor wide = maker.matrix({20, 40}, DType::f32);
  const auto before = to_floats(wide.slice(1, 30, 10));
  GemmArgs args{.a = maker.matrix({20, 8}, DType::f32),
                .b = maker.matrix({8, 30}, DType::f32),
                .out = wide.slice(1, 0, 30),
                .bias = {}};
  gemm(args, maker.stream());
  EXPECT_EQ(to_floats(wide.slice(1, 30, 10)), before);
}

// Bits of the product with 1, 2 and 5 threads; there are several blocks in both directions.
TEST(Gemm, GivesTheSameBitsForAnyNumberOfThreads) {
  for (const Types& types : all_types()) {
    for (const auto& [transpose_a, transpose_b] :
         {std::pair{false, false}, {true, false}, {false, true}}) {
      std::vector<double> first;
      for (const int threads : {1, 2, 5}) {
        ProductMaker maker(threads);
        GemmArgs args{.transpose_a = transpose_a, .transpose_b = transpose_b};
        args.a = maker.matrix(transpose_a ? Shape{40, 1100} : Shape{1100, 40}, types.in);
        args.b = maker.matrix(transpose_b ? Shape{800, 40} : Shape{40, 800}, types.in);
        args.out = maker.empty({1100, 800}, types.out);
        run(args, maker.stream(), types);
        const auto got = to_doubles(args.out);
        if (first.empty()) first = got;
        EXPECT_TRUE(got == first) << str(types) << " with " << threads << " threads";
      }
    }
  }
}

// An element has the same bits at any row and column position, in every form of the product.
TEST(Gemm, GivesAnElementTheSameBitsAtAnyIndex) {
  ProductMaker maker;
  for (const Types& types : all_types()) {
    const DType type = types.in;
    if (types.out != type) continue;
    const Tensor a = maker.matrix({133, 1101}, type), b = maker.matrix({150, 1101}, type);
    const Tensor a_turned = maker.matrix({1101, 133}, type),
                 b_turned = maker.matrix({1101, 150}, type);
    for (int64_t k = 0; k < 1101; ++k) {
      for (int64_t i = 0; i < 133; ++i) copy_element(a, i * a.stride(0) + k, a_turned, k * 133 + i);
      for (int64_t j = 0; j < 150; ++j) copy_element(b, j * b.stride(0) + k, b_turned, k * 150 + j);
    }
    const Tensor all = maker.empty({133, 150}, type);
    run({.a = a, .b = b, .out = all, .transpose_b = true}, maker.stream(), types);
    for (const auto& [i, rows, j, cols] : {std::tuple{0, 64, 0, 150},
                                           {1, 131, 3, 140},
                                           {100, 33, 77, 73},
                                           {130, 3, 20, 16},
                                           {7, 2, 1, 149},
                                           {9, 4, 2, 77},
                                           {5, 1, 0, 150},
                                           {0, 133, 149, 1}}) {
      for (int form = 0; form < 4; ++form) {
        GemmArgs part{.transpose_a = (form & 1) != 0, .transpose_b = (form & 2) != 0};
        part.a = part.transpose_a ? a_turned.slice(1, i, rows) : a.slice(0, i, rows);
        part.b = part.transpose_b ? b.slice(0, j, cols) : b_turned.slice(1, j, cols);
        part.out = maker.empty({rows, cols}, type);
        run(part, maker.stream(), types);
        EXPECT_EQ(to_doubles(part.out), to_doubles(all.slice(0, i, rows).slice(1, j, cols)))
            << str(types) << " form " << form << " rows " << i << "+" << rows << " columns " << j
            << "+" << cols;
      }
    }
  }
}

// Calls f(types) for each combination that gives f32: f32 sums on each instruction set, pairs once.
template <class F>
void for_each_sum(F f) {
  for (const Types& types : all_types()) {
    if (types.out != DType::f32) continue;
    if (is_paired(word_kind(types.in, types.products))) {
      f(types);
    } else {
      for_each_target([&](int64_t) { f(types); });
    }
  }
}

// Few rows use another code path than many (kernels/cpu/products/few_rows.h), and a long sum is
// split into several slices.
TEST(Gemm, GivesFewRowsTheBitsOfMany) {
  ProductMaker maker;
  for_each_sum([&](const Types& types) {
    const DType type = types.in;
    for (const auto& [k, n] : {std::pair{4611, 53}, {4608, 48}, {31, 32}, {1, 7}}) {
      const Tensor a = maker.matrix({12, k}, type), b = maker.matrix({n, k}, type);
      const Tensor many = maker.empty({12, n}, DType::f32);
      run({.a = a, .b = b, .out = many, .transpose_b = true}, maker.stream(), types);
      for (int64_t rows = 1; rows <= kFewRows; ++rows) {
        const Tensor few = maker.empty({rows, n}, DType::f32);
        run({.a = a.slice(0, 2, rows), .b = b, .out = few, .transpose_b = true}, maker.stream(),
            types);
        EXPECT_EQ(
            std::memcmp(few.raw(), many.slice(0, 2, rows).raw(), static_cast<size_t>(few.bytes())),
            0)
            << str(types) << " " << rows << " rows over " << k;
      }
    }
  });
}

TEST(FewRows, AreReadAsTheyLieOnAvx512AndAvx2) {
  for_each_target([](int64_t) {
    for (const DType type : {DType::f32, DType::bf16}) {
      EXPECT_TRUE(takes_few_rows(WordKind::f32, type, kFewRows));
      EXPECT_FALSE(takes_few_rows(WordKind::f32, type, kFewRows + 1));
    }
  });
}

// Products as in attention, in two parts, of which the second accumulates.
TEST(FewRows, GiveTheBitsOfManyWhereTheMatrixIsNotTransposed) {
  constexpr int64_t kMax = 9;
  ProductMaker maker;
  for_each_sum([&](const Types& types) {
    const DType type = types.in;
    const WordKind kind = word_kind(type, types.products);
    if (!takes_few_rows(kind, type, 1)) return;
    for (const int64_t k : {1, 2, 7, 130, 333}) {
      for (const int64_t n : {1, 19, 32, 45, 64, 100}) {
        const Tensor a = maker.matrix({kMax, k}, type), b = maker.matrix({k, n}, type, 3);
        const Tensor many = maker.empty({kMax, n}, DType::f32);
        run({.a = a, .b = b, .out = many}, maker.stream(), types);
        for (int64_t m = 1; m <= kFewRows; ++m) {
          const auto base = [&](const Tensor& t) { return static_cast<std::byte*>(t.raw()); };
          const Tensor few = maker.empty({m, round_up(n, kPanel)}, DType::f32);
          const int64_t step = kind == WordKind::bf16_amx ? 32 : 2, cut = k / 2 / step * step;
          for (const int64_t begin : {int64_t{0}, cut}) {
            const int64_t elements = begin == 0 && cut > 0 ? cut : k - begin;
            std::vector<uint32_t> left(static_cast<size_t>(m * words(kind, elements)));
            rows_to_words(kind, {base(a) + begin * size_of(type), a.stride(0), type}, m, elements,
                          left.data());
            few_rows_product_nn(
                kind, {.m = m,
                       .n = n,
                       .elements = elements,
                       .a = left.data(),
                       .a_row = words(kind, elements),
                       .b = {base(b) + begin * b.stride(0) * size_of(type), b.stride(0), type},
                       .c = few.data<float>(),
                       .ldc = few.stride(0),
                       .accumulate = begin > 0});
            if (elements == k) break;
          }
          EXPECT_EQ(to_doubles(few.slice(1, 0, n)), to_doubles(many.slice(0, 0, m)))
              << str(types) << ": " << m << " x " << n << " over " << k;
        }
      }
    }
  });
}

// Rows have more words than a call keeps at once.
TEST(FewRows, GiveTheBitsOfManyHoweverLongTheyAre) {
  constexpr int64_t kLong = 17001, kColumns = 33;
  ProductMaker maker;
  for_each_sum([&](const Types& types) {
    const DType type = types.in;
    const WordKind kind = word_kind(type, types.products);
    if (!takes_few_rows(kind, type, 1)) return;
    const Tensor a = maker.matrix({12, kLong}, type), b = maker.matrix({kColumns, kLong}, type);
    const Tensor many = maker.empty({12, kColumns}, DType::f32);
    run({.a = a, .b = b, .out = many, .transpose_b = true}, maker.stream(), types);
    const auto base = [](const Tensor& t) { return static_cast<std::byte*>(t.raw()); };
    for (const int64_t m : {int64_t{1}, int64_t{3}, kFewRows}) {
      std::vector<uint32_t> left(static_cast<size_t>(m * words(kind, kLong)));
      rows_to_words(kind, {base(a), a.stride(0), type}, m, kLong, left.data());
      const Tensor few = maker.empty({m, kColumns}, DType::f32);
      few_rows_product_nt(kind, {.m = m,
                                 .n = kColumns,
                                 .elements = kLong,
                                 .a = left.data(),
                                 .a_row = words(kind, kLong),
                                 .b = {base(b), b.stride(0), type},
                                 .c = few.data<float>(),
                                 .ldc = few.stride(0),
                                 .accumulate = false});
      EXPECT_EQ(to_doubles(few), to_doubles(many.slice(0, 0, m))) << str(types) << " " << m;
    }
  });
}

// Compares tiles with their definition bit for bit, in both orientations, in memory that ends with
// the matrices.
TEST(Tiles, OfAmxAreTheSumsOfTheirDefinition) {
  const auto& ways = bf16_ways();
  if (std::find(ways.begin(), ways.end(), Bf16Products::amx) == ways.end())
    GTEST_SKIP() << "neither AMX nor AVX-512 to emulate it with";
  std::mt19937 random(1);
  // Some of the ordinary numbers have subnormal products, which count as zero.
  const auto pair = [&] {
    const auto half = [&] {
      const float small = random() % 8 == 0 ? 0x1p-70f : 1.0f;
      const auto number = static_cast<float>(static_cast<int32_t>(random() % 513) - 256) / 256;
      return static_cast<uint32_t>(std::bit_cast<uint16_t>(bf16(number * small)));
    };
    return half() | half() << 16;
  };
  const auto element = [](uint32_t word, int odd) {
    return std::bit_cast<float>(odd == 0 ? word << 16 : word & 0xffff0000u);
  };
  const auto flushed = [](float x) { return std::abs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; };
  for (const int64_t m : {1, 15, 16, 17, 32, 40}) {
    for (const int64_t k : {1, 16, 17, 40, 128}) {
      for (const int64_t n : {32, 96}) {
        std::vector<uint32_t> rows(static_cast<size_t>(m * k)), turned(rows.size()),
            panels(static_cast<size_t>(n * k));
        for (uint32_t& word : rows) word = pair();
        for (uint32_t& word : panels) word = pair();
        const auto row = [&](int64_t i, int64_t l) { return rows[static_cast<size_t>(i * k + l)]; };
        for (int64_t i = 0; i < m; ++i)
          for (int64_t l = 0; l < k; ++l) turned[static_cast<size_t>(l * m + i)] = row(i, l);
        for (const bool accumulate : {false, true}) {
          std::vector<float> want(static_cast<size_t>(m * n));
          for (float& x : want) x = accumulate ? element(pair(), 0) : 0;
          const std::vector<float> before = want;
          for (int64_t at = 0; at < m * n; ++at) {
            const int64_t i = at / n, j = at % n;
            float& sum = want[static_cast<size_t>(at)];
            for (int64_t begin = 0; begin < k; begin += 16) {
              float sums[2] = {};
              for (int64_t l = begin; l < std::min(begin + 16, k); ++l) {
                const uint32_t word =
                    panels[static_cast<size_t>((j / kPanel * k + l) * kPanel + j % kPanel)];
                for (const int odd : {0, 1}) {
                  sums[odd] =
                      flushed(std::fma(element(row(i, l), odd), element(word, odd), sums[odd]));
                }
              }
              sum = flushed(sum + flushed(sums[0] + sums[1]));
            }
          }
          for (const bool turn : {false, true}) {
            std::vector<float> got = before;
            tile_product(WordKind::bf16_amx, {.m = m,
                                              .n = n,
                                              .k = k,
                                              .a = turn ? turned.data() : rows.data(),
                                              .a_row = turn ? 1 : k,
                                              .a_step = turn ? m : 1,
                                              .b = panels.data(),
                                              .panel = k * kPanel,
                                              .c = got.data(),
                                              .ldc = n,
                                              .accumulate = accumulate});
            EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * 4), 0)
                << m << " x " << n << " over " << k << " words, turned " << turn;
          }
        }
      }
    }
  }
}

TEST(DoubleSums, AreThoseOfF64RoundedOnce) {
  ProductMaker make;
  const auto wide = [&](const Tensor& t) {
    Tensor copy = make.empty(t.shape(), DType::f64);
    copy_from(copy, to_doubles(t));
    return copy;
  };
  const Sizes size{70, 33, 700};
  for_each_target([&](int64_t) {
    for (const DType type : {DType::f32, DType::bf16}) {
      for (const auto& [ta, tb] :
           {std::pair{false, false}, {false, true}, {true, false}, {true, true}}) {
        GemmArgs args{.transpose_a = ta, .transpose_b = tb, .beta = 1, .double_sums = true};
        args.a = make.matrix(ta ? Shape{size.k, size.m} : Shape{size.m, size.k}, type, 3);
        args.b = make.matrix(tb ? Shape{size.n, size.k} : Shape{size.k, size.n}, type);
        args.out = make.matrix({size.m, size.n}, DType::f32, 5);
        args.bias = make.matrix({size.n}, type);
        const GemmArgs in_f64{.a = wide(args.a),
                              .b = wide(args.b),
                              .out = wide(args.out),
                              .transpose_a = ta,
                              .transpose_b = tb,
                              .beta = 1,
                              .bias = wide(args.bias)};
        gemm(args, make.stream());
        gemm(in_f64, make.stream());
        const std::vector<double> got = to_doubles(args.out), want = to_doubles(in_f64.out);
        for (size_t i = 0; i < want.size(); ++i)
          ASSERT_EQ(got[i], static_cast<double>(static_cast<float>(want[i])))
              << name(type) << " " << ta << tb << " element " << i;
      }
    }
  });
}

// The f32 sum of these terms loses the whole result.
TEST(DoubleSums, KeepWhatF32Loses) {
  ProductMaker make;
  Tensor a = make.empty({1, 3}, DType::f32), b = make.empty({1, 3}, DType::f32);
  const Tensor out = make.empty({1, 1}, DType::f32);
  copy_from(a, std::vector<double>{1e8, 1, -1e8});
  copy_from(b, std::vector<double>{1, 1, 1});
  for (const bool double_sums : {false, true}) {
    gemm({.a = a, .b = b, .out = out, .transpose_b = true, .double_sums = double_sums},
         make.stream());
    EXPECT_EQ(to_doubles(out)[0], double_sums ? 1 : 0);
  }
}

}  // namespace
}  // namespace megatron::kernels::cpu
