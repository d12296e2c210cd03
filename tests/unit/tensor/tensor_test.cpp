// Shapes, views and host copies.
#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"

namespace megatron {
namespace {

class TensorTest : public ::testing::Test {
 protected:
  Tensor make(Shape shape, DType type = DType::f32) {
    return Tensor::empty(runtime_.arena(MemoryClass::activations), shape, type, "test");
  }
  Tensor counted(Shape shape, DType type = DType::f32) {
    Tensor tensor = make(shape, type);
    std::vector<double> values(static_cast<size_t>(shape.elements()));
    std::iota(values.begin(), values.end(), 0.0);
    copy_from(tensor, values);
    return tensor;
  }
  Runtime runtime_{{DeviceKind::cpu}, 1};
};

using Values = std::vector<double>;

TEST(ShapeTest, SizesAndText) {
  const Shape shape{2, 3, 4};
  EXPECT_EQ(shape.rank(), 3);
  EXPECT_EQ(shape[-1], 4);
  EXPECT_EQ(shape[0], 2);
  EXPECT_EQ(shape.elements(), 24);
  EXPECT_EQ(shape.str(), "[2, 3, 4]");
  EXPECT_EQ(Shape().elements(), 1);
  EXPECT_EQ(Shape().str(), "[]");
  EXPECT_EQ((Shape{0, 5}).elements(), 0);
  EXPECT_FALSE(shape == (Shape{2, 3}));
  EXPECT_THROW((Shape{1, -1}), Error);
  EXPECT_THROW((Shape{1, 1, 1, 1, 1, 1, 1}), Error);
}

TEST_F(TensorTest, IsRowMajorAndShared) {
  const Tensor tensor = counted({2, 3, 4});
  EXPECT_EQ(tensor.stride(0), 12);
  EXPECT_EQ(tensor.stride(-1), 1);
  EXPECT_EQ(tensor.bytes(), 96);
  EXPECT_TRUE(tensor.is_contiguous());
  const Tensor alias = tensor;
  alias.data<float>()[5] = 50;
  EXPECT_EQ(tensor.data<float>()[5], 50);
  EXPECT_TRUE(alias.same_storage(tensor));
  EXPECT_FALSE(Tensor().defined());
}

TEST_F(TensorTest, MemoryGoesBackWithTheLastView) {
  Arena& arena = runtime_.arena(MemoryClass::activations);
  Tensor tensor = make({100});
  Tensor view = tensor.slice(0, 10, 5);
  tensor = Tensor();
  EXPECT_EQ(arena.in_use(), 448);
  view = Tensor();
  EXPECT_EQ(arena.in_use(), 0);
}

TEST_F(TensorTest, SliceAndTranspose) {
  const Tensor tensor = counted({3, 4});
  const Tensor part = tensor.slice(1, 1, 2);
  EXPECT_EQ(to_doubles(part), (Values{1, 2, 5, 6, 9, 10}));
  EXPECT_FALSE(part.is_contiguous());
  EXPECT_TRUE(tensor.slice(0, 1, 2).is_contiguous());
  const Tensor turned = part.transpose(0, 1);
  EXPECT_EQ(turned.shape(), (Shape{2, 3}));
  EXPECT_EQ(to_doubles(turned), (Values{1, 5, 9, 2, 6, 10}));
  EXPECT_EQ(to_doubles(turned.slice(-1, 2, 1)), (Values{9, 10}));
  EXPECT_EQ(to_doubles(tensor.slice(0, 3, 0)), Values{});
  EXPECT_THROW(tensor.slice(0, 2, 2), InternalError);
  EXPECT_THROW(tensor.slice(0, -1, 1), InternalError);
}

TEST_F(TensorTest, ViewKeepsElements) {
  const Tensor tensor = counted({3, 4});
  EXPECT_EQ(to_doubles(tensor.view({2, 6}).slice(0, 1, 1)), (Values{6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(to_doubles(tensor.slice(0, 1, 2).view({8}).slice(0, 0, 2)), (Values{4, 5}));
  EXPECT_THROW(tensor.view({5}), InternalError);
  EXPECT_THROW(tensor.transpose(0, 1).view({12}), InternalError);
}

TEST_F(TensorTest, SizesOfOneDoNotBreakContiguity) {
  const Tensor tensor = counted({4, 1, 3});
  EXPECT_TRUE(tensor.transpose(0, 1).is_contiguous());
  EXPECT_TRUE(tensor.slice(0, 2, 1).transpose(0, 2).slice(0, 0, 1).is_contiguous());
}

TEST_F(TensorTest, AsStridedRepeatsAndStaysInside) {
  const Tensor tensor = counted({2, 3});
  EXPECT_EQ(to_doubles(tensor.as_strided({2, 3}, std::array<int64_t, 2>{0, 1}, 3)),
            (Values{3, 4, 5, 3, 4, 5}));
  EXPECT_EQ(to_doubles(tensor.as_strided({2, 2}, std::array<int64_t, 2>{1, 2})),
            (Values{0, 2, 1, 3}));
  EXPECT_THROW(tensor.as_strided({2, 3}, std::array<int64_t, 2>{3, 1}, 1), InternalError);
  EXPECT_THROW(tensor.as_strided({2}, std::array<int64_t, 2>{3, 1}), InternalError);
  EXPECT_NO_THROW(tensor.as_strided({0, 3}, std::array<int64_t, 2>{3, 1}, 6));
}

TEST_F(TensorTest, TypesAreChecked) {
  const Tensor tensor = make({2}, DType::bf16);
  EXPECT_THROW(tensor.data<float>(), InternalError);
  EXPECT_NO_THROW(tensor.view_as(DType::u16).data<uint16_t>());
  EXPECT_THROW(tensor.view_as(DType::f32), InternalError);
  EXPECT_THROW(counted({2, 2}).transpose(0, 1).span<float>(), InternalError);
}

TEST_F(TensorTest, CopiesConvertBetweenTypes) {
  for (const DType type : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64, DType::i32,
                           DType::i16, DType::i8, DType::u16, DType::u8}) {
    EXPECT_EQ(to_doubles(counted({2, 3}, type)), (Values{0, 1, 2, 3, 4, 5})) << name(type);
    EXPECT_EQ(to_floats(counted({2, 3}, type).transpose(0, 1)),
              (std::vector<float>{0, 3, 1, 4, 2, 5}))
        << name(type);
  }
  Tensor narrow = make({3}, DType::bf16);
  copy_from(narrow, Values{1 + 0x1p-8, 1 + 3 * 0x1p-8, std::numeric_limits<double>::infinity()});
  EXPECT_EQ(to_doubles(narrow),
            (Values{1, 1 + 4 * 0x1p-8, std::numeric_limits<double>::infinity()}));  // ties to even
  Tensor ids = make({2}, DType::i32);
  copy_from(ids, std::span<const int32_t>(std::array<int32_t, 2>{-100, 1 << 30}));
  EXPECT_EQ(to_doubles(ids), (Values{-100, 1 << 30}));
  EXPECT_THROW(copy_from(ids, Values{1}), InternalError);
}

TEST_F(TensorTest, CopyFromFillsAView) {
  const Tensor tensor = counted({2, 3});
  Tensor column = tensor.slice(1, 1, 1);
  copy_from(column, Values{-1, -2});
  EXPECT_EQ(to_doubles(tensor), (Values{0, -1, 2, 3, -2, 5}));
}

TEST_F(TensorTest, EmptyTensors) {
  const Tensor tensor = make({0, 4});
  EXPECT_TRUE(tensor.defined());
  EXPECT_TRUE(tensor.is_contiguous());
  EXPECT_EQ(to_doubles(tensor), Values{});
  EXPECT_TRUE(tensor.span<float>().empty());
  EXPECT_EQ(tensor.device().kind, DeviceKind::cpu);
}

TEST_F(TensorTest, ShellsKeepTheViewAndNotTheMemory) {
  Tensor tensor = make({3, 4});
  copy_from(tensor, Values{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  const Tensor view = tensor.slice(0, 1, 2).transpose(0, 1);
  EXPECT_EQ(view.whole().shape(), (Shape{12}));
  EXPECT_EQ(to_doubles(view.whole()), to_doubles(tensor));
  EXPECT_EQ(view.storage_id(), tensor.storage_id());
  const Tensor shell = view.shell();
  EXPECT_FALSE(shell.defined());
  EXPECT_EQ(shell.storage_id(), nullptr);
  EXPECT_EQ(shell.shape(), view.shape());
  Tensor other = make({3, 4});
  copy_from(other, Values{10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21});
  EXPECT_EQ(to_doubles(shell.on(other)), (Values{14, 18, 15, 19, 16, 20, 17, 21}));
  EXPECT_EQ(to_doubles(view.on(other)), to_doubles(shell.on(other)));
  EXPECT_THROW(shell.on(make({2, 4})), InternalError);
}

TEST_F(TensorTest, UnownedViewsKeepNothingAlive) {
  Arena& arena = runtime_.arena(MemoryClass::activations);
  const int64_t before = arena.in_use();
  Tensor tensor = Tensor::empty(arena, {3, 4}, DType::f32, "test");
  copy_from(tensor, Values{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  const Tensor view = tensor.slice(0, 1, 2).unowned();
  EXPECT_EQ(view.address(), tensor.slice(0, 1, 2).address());
  EXPECT_EQ(view.whole().shape(), (Shape{12}));
  tensor = {};
  EXPECT_EQ(arena.in_use(), before);
  Tensor next = Tensor::empty(arena, {3, 4}, DType::f32, "test");
  copy_from(next, Values{20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31});
  EXPECT_EQ(to_doubles(view), (Values{24, 25, 26, 27, 28, 29, 30, 31}));
}

TEST_F(TensorTest, ReadScalar) {
  Tensor value = make({}, DType::f64);
  copy_from(value, Values{0.1});
  EXPECT_EQ(read_scalar(value, runtime_.stream()), 0.1);
  EXPECT_THROW(read_scalar(make({2}), runtime_.stream()), InternalError);
}

TEST(MetaTensor, HasShapesAndNoData) {
  Runtime meta({DeviceKind::meta}, 1);
  const Tensor tensor =
      Tensor::empty(meta.arena(MemoryClass::parameters), {1 << 20, 1 << 20}, DType::f32, "huge");
  EXPECT_EQ(tensor.bytes(), int64_t{1} << 42);
  EXPECT_EQ(meta.arena(MemoryClass::parameters).high_water(), int64_t{1} << 42);
  EXPECT_EQ(tensor.slice(0, 5, 7).transpose(0, 1).shape(), (Shape{1 << 20, 7}));
  EXPECT_THROW(tensor.data<float>(), InternalError);
  const Tensor scalar =
      Tensor::empty(meta.arena(MemoryClass::parameters), {}, DType::f64, "scalar");
  EXPECT_THROW(read_scalar(scalar, meta.stream()), InternalError);
}

}  // namespace
}  // namespace megatron
