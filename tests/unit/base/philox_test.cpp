#include "base/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace megatron {
namespace {

// Known answers of Random123 (kat_vectors, philox4x32-10).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// Published values of 64-bit FNV-1a.
TEST(Philox, HashOfNames) {
  EXPECT_EQ(hash_name(""), 0xcbf29ce484222325u);
  EXPECT_EQ(hash_name("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(hash_name("foobar"), 0x85944171f73967e8u);
}

TEST(RandomStream, BitsAreTheHalvesOfPhiloxBlocks) {
  const uint64_t seed = 0x299f31d0a4093822, stream = 0x0370734413198a2e, index = 0x85a308d3243f6a88;
  const RandomStream random(seed, stream);
  const PhiloxCounter block =
      philox({static_cast<uint32_t>(index / 2), static_cast<uint32_t>(index / 2 >> 32), 0x13198a2e,
              0x03707344},
             {0xa4093822, 0x299f31d0});
  EXPECT_EQ(random.bits(index), uint64_t{block[1]} << 32 | block[0]);
  EXPECT_EQ(random.bits(index + 1), uint64_t{block[3]} << 32 | block[2]);
}

TEST(RandomStream, StreamsAndSeedsDiffer) {
  std::set<uint64_t> seen;
  for (const uint64_t seed : {0ull, 1ull, 1ull << 32, 1ull << 63}) {
    for (const char* name : {"", "a", "b", "layers.0.weight", "layers.1.weight"}) {
      for (uint64_t i = 0; i < 100; ++i) seen.insert(RandomStream(seed, name).bits(i));
    }
  }
  EXPECT_EQ(seen.size(), 4u * 5 * 100);
  EXPECT_EQ(RandomStream(7, "x").bits(3), RandomStream(7, hash_name("x")).bits(3));
}

TEST(RandomStream, UniformsAreFlat) {
  const RandomStream random(3, "uniform");
  constexpr int kDraws = 100'000, kCells = 20;
  int counts[kCells] = {};
  for (uint64_t i = 0; i < kDraws; ++i) {
    const double u = random.uniform(i);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    ++counts[static_cast<int>(u * kCells)];
  }
  double chi2 = 0;
  for (const int count : counts)
    chi2 += std::pow(count - kDraws / kCells, 2) / (double{kDraws} / kCells);
  EXPECT_LT(chi2, 43.8);  // 19 degrees of freedom: exceeded by chance once in 1000 runs
}

TEST(RandomStream, NormalsHaveTheMomentsOfTheNormalDistribution) {
  const RandomStream random(4, "normal");
  constexpr int kDraws = 200'000;
  double m1 = 0, m2 = 0, m3 = 0, m4 = 0, neighbours = 0, tail = 0;
  for (uint64_t i = 0; i < kDraws; ++i) {
    const double z = random.normal(i);
    ASSERT_TRUE(std::isfinite(z));
    m1 += z;
    m2 += z * z;
    m3 += z * z * z;
    m4 += z * z * z * z;
    if (i % 2 == 0) neighbours += z * random.normal(i + 1);
    if (std::abs(z) > 2) ++tail;
  }
  // Five standard deviations of each mean: sqrt(Var / n) with variances 1, 2, 15, 96; 1 (n / 2
  // pairs); p (1 - p).
  const double s = 5 / std::sqrt(double{kDraws});
  EXPECT_NEAR(m1 / kDraws, 0, s);
  EXPECT_NEAR(m2 / kDraws, 1, s * std::sqrt(2));
  EXPECT_NEAR(m3 / kDraws, 0, s * std::sqrt(15));
  EXPECT_NEAR(m4 / kDraws, 3, s * std::sqrt(96));
  EXPECT_NEAR(neighbours / (kDraws / 2), 0, s * std::sqrt(2));
  const double p = std::erfc(2 / std::sqrt(2));
  EXPECT_NEAR(tail / kDraws, p, s * std::sqrt(p * (1 - p)));
}

TEST(RandomStream, NormalsAreBoxMullerPairs) {
  const RandomStream random(5, "pair");
  for (uint64_t i = 0; i < 1000; i += 2) {
    const double r2 = std::pow(random.normal(i), 2) + std::pow(random.normal(i + 1), 2);
    EXPECT_NEAR(r2, -2 * std::log1p(-random.uniform(i)), 1e-12);
  }
}

}  // namespace
}  // namespace megatron
