#include "tensor/finite.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace megatron::training {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

class Finite : public ::testing::Test {
 protected:
  Finite() : runtime({DeviceKind::reference, 0}, 2) {}
  // Ones, except for some elements.
  Tensor tensor(Shape shape, DType type, const std::vector<std::pair<int64_t, double>>& others) {
    Tensor t = Tensor::empty(runtime.arena(MemoryClass::activations), shape, type, "test");
    std::vector<double> values(static_cast<size_t>(shape.elements()), 1.0);
    for (const auto& [index, value] : others) values[static_cast<size_t>(index)] = value;
    copy_from(t, values);
    return t;
  }
  NonFinite find(const Tensor& t, bool minus = false) {
    return find_non_finite(t, minus, runtime.pool());
  }
  Runtime runtime;
};

TEST_F(Finite, EveryFormatAndEveryKind) {
  for (const DType type : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    EXPECT_FALSE(find(tensor({5, 7}, type, {{3, -6e4}})));
    for (const double value : {kNan, -kNan, kInfinity, -kInfinity}) {
      const NonFinite found = find(tensor({5, 7}, type, {{9, value}, {30, kNan}}));
      EXPECT_EQ(found.first, 9) << name(type) << " " << value;
      EXPECT_EQ(found.count, 2);
    }
  }
  EXPECT_FALSE(find(tensor({3}, DType::i32, {})));
  EXPECT_FALSE(find(tensor({0, 4}, DType::f32, {})));
  EXPECT_EQ(find(tensor({}, DType::f64, {{0, kNan}})).first, 0);
}

TEST_F(Finite, MinusInfinityMayBeRight) {
  for (const DType type : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    EXPECT_FALSE(find(tensor({8}, type, {{2, -kInfinity}}), true));
    const NonFinite found = find(tensor({8}, type, {{2, -kInfinity}, {4, kInfinity}}), true);
    EXPECT_EQ(found.first, 4);
    EXPECT_EQ(found.count, 1);
    EXPECT_EQ(find(tensor({8}, type, {{2, -kInfinity}, {5, kNan}}), true).first, 5);
  }
}

TEST_F(Finite, OfManyBlocksTheFirstIsFound) {
  const int64_t n = 300000;
  const NonFinite found = find(tensor({n}, DType::f32, {{70001, kNan}, {n - 1, kInfinity}}));
  EXPECT_EQ(found.first, 70001);
  EXPECT_EQ(found.count, 2);
}

TEST_F(Finite, StridedTensorsCountTheirOwnElementsOnly) {
  const Tensor t = tensor({6, 10}, DType::f32, {{3 * 10 + 2, kNan}, {5 * 10 + 9, kInfinity}});
  EXPECT_EQ(find(t.slice(1, 0, 5)).first, 3 * 5 + 2);
  EXPECT_EQ(find(t.slice(1, 0, 5)).count, 1);
  EXPECT_EQ(find(t.transpose(0, 1)).first, 2 * 6 + 3);
  EXPECT_EQ(find(t.transpose(0, 1)).count, 2);
  EXPECT_FALSE(find(t.slice(1, 3, 4)));
  EXPECT_EQ(element_at(t.transpose(0, 1), 9 * 6 + 5), kInfinity);
}

TEST_F(Finite, PlacesAndSizes) {
  EXPECT_EQ(place_of({4, 3, 5}, 2 * 15 + 1 * 5 + 4), "[2, 1, 4]");
  EXPECT_EQ(place_of({}, 0), "[]");
  for (const DType type : {DType::f64, DType::f32, DType::bf16, DType::f16})
    EXPECT_EQ(largest_finite(tensor({5, 7}, type, {{3, -64}, {9, kInfinity}, {11, kNan}})), 64);
  EXPECT_EQ(largest_finite(tensor({2}, DType::f32, {{0, kNan}, {1, kNan}})), 0);
}

}  // namespace
}  // namespace megatron::training
