#include "parallel/placement.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/error.h"
#include "base/philox.h"

namespace megatron::parallel {
namespace {

constexpr uint64_t kSeed = 1234;

struct Host {
  Runtime runtime{{DeviceKind::reference, 0}, 1};

  ParameterSpec placed(Shape shape, DType type, std::vector<CanonicalTensor> parts,
                       Init init = {Init::Kind::normal, 0.02}) {
    ParameterSpec p;
    p.parameter.value =
        Tensor::empty(runtime.arena(MemoryClass::parameters), shape, type, "weight");
    copy_from(p.parameter.value, std::vector<double>(static_cast<size_t>(shape.elements()), 99.0));
    p.placement.tensors = std::move(parts);
    p.init = init;
    return p;
  }
};

// Canonical values by tensor name and element; 1e30 if no rank has set them.
using Canonical = std::map<std::string, std::vector<double>>;

// Adds a rank's values; elements held by two ranks must agree.
void collect(const ParameterSpec& placed, Canonical& all) {
  const std::vector<double> values = to_doubles(placed.parameter.value);
  for_each_run(placed,
               [&](const CanonicalTensor& part, int64_t canonical, int64_t local, int64_t size) {
                 auto& tensor = all[part.name];
                 tensor.resize(static_cast<size_t>(part.global.elements()), 1e30);
                 for (int64_t i = 0; i < size; ++i) {
                   double& slot = tensor[static_cast<size_t>(canonical + i)];
                   const double value = values[static_cast<size_t>(local + i)];
                   EXPECT_TRUE(slot == 1e30 || slot == value);
                   slot = value;
                 }
               });
}

// Fused q, k, v with 8 query heads and 2 key-value heads of 4 rows: a rank's share of each. With tp
// 4, two ranks hold the same key head.
std::vector<CanonicalTensor> qkv(int tp, int rank, int64_t hidden) {
  const int64_t q = 32 / tp, kv = std::max<int64_t>(4, 8 / tp), kv_begin = rank * 8 / tp / 4 * 4;
  return {{"q", {32, hidden}, {{0, {{rank * q, 0, q}}}}},
          {"k", {8, hidden}, {{0, {{kv_begin, q, kv}}}}},
          {"v", {8, hidden}, {{0, {{kv_begin, q + kv, kv}}}}}};
}

Canonical initialised(int tp, DType type) {
  Canonical all;
  for (int rank = 0; rank < tp; ++rank) {
    Host host;
    const std::vector<CanonicalTensor> parts = qkv(tp, rank, 6);
    const int64_t rows = parts[2].slices(0)[0].local_begin + parts[2].slices(0)[0].size;
    ParameterSpec p = host.placed({rows, 6}, type, parts);
    initialize(p, kSeed, host.runtime.stream());
    collect(p, all);
  }
  return all;
}

TEST(Initialize, DoesNotDependOnTheLayout) {
  for (const DType type : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    const Canonical one = initialised(1, type);
    EXPECT_EQ(one.size(), 3u);
    EXPECT_EQ(initialised(2, type), one);
    EXPECT_EQ(initialised(4, type), one);
  }
}

TEST(Initialize, DrawsElementIAtIndexI) {
  const Canonical all = initialised(1, DType::f64);
  for (const auto& [name, values] : all) {
    const RandomStream stream(kSeed, name);
    for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], 0.02 * stream.normal(i));
  }
  EXPECT_NE(all.at("k"), all.at("v"));
}

TEST(Initialize, ColumnSlicesAndTransposedTensors) {
  Canonical whole, halves;
  for (const int ranks : {1, 2}) {
    for (int rank = 0; rank < ranks; ++rank) {
      Host host;
      const int64_t n = 8 / ranks;
      // `transposed` only concerns the file: the logical order decides.
      ParameterSpec p =
          host.placed({3, n}, DType::f32, {{"o", {3, 8}, {{1, {{rank * n, 0, n}}}}, rank == 1}});
      initialize(p, kSeed, host.runtime.stream());
      collect(p, ranks == 1 ? whole : halves);
    }
  }
  EXPECT_EQ(whole, halves);
}

TEST(Initialize, PaddedRowsAreZeroAndOnesAreOnes) {
  Host host;
  for (const Init init :
       {Init{Init::Kind::normal, 1.0}, Init{Init::Kind::ones, 0}, Init{Init::Kind::zeros, 0}}) {
    ParameterSpec p =
        host.placed({5, 2}, DType::bf16, {{"embedding", {3, 2}, {{0, {{0, 0, 3}}}}}}, init);
    initialize(p, kSeed, host.runtime.stream());
    const std::vector<double> values = to_doubles(p.parameter.value);
    for (size_t i = 0; i < 10; ++i) {
      if (i >= 6) {
        EXPECT_EQ(values[i], 0.0);
      } else if (init.kind == Init::Kind::normal) {
        EXPECT_NE(values[i], 0.0);
      } else {
        EXPECT_EQ(values[i], init.kind == Init::Kind::ones ? 1.0 : 0.0);
      }
    }
  }
}

TEST(Initialize, HasTheDeviationAsked) {
  Host host;
  ParameterSpec p = host.placed({400, 50}, DType::f32, {{"w", {400, 50}, {{0, {{0, 0, 400}}}}}});
  initialize(p, kSeed, host.runtime.stream());
  double sum = 0, squares = 0;
  for (const double v : to_doubles(p.parameter.value)) {
    sum += v;
    squares += v * v;
  }
  EXPECT_NEAR(sum / 20000, 0.0, 0.0006);
  EXPECT_NEAR(std::sqrt(squares / 20000), 0.02, 0.0005);
}

TEST(Initialize, LeavesMetaAlone) {
  Runtime runtime({DeviceKind::meta, 0}, 1);
  ParameterSpec p;
  p.parameter.value =
      Tensor::empty(runtime.arena(MemoryClass::parameters), {4, 2}, DType::bf16, "weight");
  p.placement.tensors = {{"w", {4, 2}, {{0, {{0, 0, 4}}}}}};
  p.init = {Init::Kind::normal, 1.0};
  initialize(p, kSeed, runtime.stream());
}

struct Stretch {
  std::string part;
  int64_t canonical, local, size;
  bool operator==(const Stretch&) const = default;
};

std::vector<Stretch> runs(const ParameterSpec& placed) {
  std::vector<Stretch> all;
  for_each_run(placed, [&](const CanonicalTensor& part, int64_t canonical, int64_t local,
                           int64_t size) { all.push_back({part.name, canonical, local, size}); });
  return all;
}

TEST(ForEachRun, JoinsWhatIsContiguousInBoth) {
  Host host;
  // A whole tensor is one run along either axis.
  EXPECT_EQ(runs(host.placed({4, 3}, DType::f32, {{"a", {4, 3}, {{0, {{0, 0, 4}}}}}})),
            (std::vector<Stretch>{{"a", 0, 0, 12}}));
  EXPECT_EQ(runs(host.placed({4, 3}, DType::f32, {{"a", {4, 3}, {{1, {{0, 0, 3}}}}}})),
            (std::vector<Stretch>{{"a", 0, 0, 12}}));
  // Columns 2..3 of 4: one run per row.
  EXPECT_EQ(runs(host.placed({2, 2}, DType::f32, {{"a", {2, 4}, {{1, {{2, 0, 2}}}}}})),
            (std::vector<Stretch>{{"a", 2, 0, 2}, {"a", 6, 2, 2}}));
  // Two slices of the axis, given out of order and adjacent in the canonical tensor but not here;
  // and an empty one.
  EXPECT_EQ(runs(host.placed({4, 2}, DType::f32,
                             {{"a", {6, 2}, {{0, {{3, 0, 1}, {2, 2, 1}, {0, 0, 0}}}}}})),
            (std::vector<Stretch>{{"a", 4, 4, 2}, {"a", 6, 0, 2}}));
  // Two slices that are adjacent in both.
  EXPECT_EQ(runs(host.placed({2, 2}, DType::f32, {{"a", {6, 2}, {{0, {{2, 0, 1}, {3, 1, 1}}}}}})),
            (std::vector<Stretch>{{"a", 4, 0, 4}}));
  // One dimension, and parts one after another.
  EXPECT_EQ(runs(host.placed({5}, DType::f32,
                             {{"g", {6}, {{0, {{3, 0, 3}}}}}, {"u", {4}, {{0, {{2, 3, 2}}}}}})),
            (std::vector<Stretch>{{"g", 3, 0, 3}, {"u", 2, 3, 2}}));
}

TEST(ForEachRun, RefusesSlicesOutsideTheTensors) {
  Host host;
  for (const Slice slice : {Slice{3, 0, 4}, Slice{0, 3, 2}, Slice{-1, 0, 1}, Slice{0, 0, -1}}) {
    EXPECT_THROW(runs(host.placed({4, 2}, DType::f32, {{"a", {6, 2}, {{0, {slice}}}}})),
                 InternalError);
  }
  EXPECT_THROW(runs(host.placed({4, 3}, DType::f32, {{"a", {6, 2}, {{0, {{0, 0, 1}}}}}})),
               InternalError);
}

TEST(CanonicalTensor, StoredShape) {
  EXPECT_EQ((CanonicalTensor{"a", {4, 3}, {}, false}.stored_shape()), (Shape{4, 3}));
  EXPECT_EQ((CanonicalTensor{"a", {4, 3}, {}, true}.stored_shape()), (Shape{3, 4}));
  EXPECT_EQ((CanonicalTensor{"a", {5, 4, 3}, {}, true}.stored_shape()), (Shape{5, 3, 4}));
  EXPECT_EQ((CanonicalTensor{"a", {1, 4, 3}, {}, true, true}.stored_shape()), (Shape{3, 4}));
}

}  // namespace
}  // namespace megatron::parallel
