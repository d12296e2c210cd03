// A GPU's parameters are drawn on the GPU, with the same bits as on the CPU.
#include <gtest/gtest.h>

#include "parallel/placement.h"

namespace megatron::parallel {
namespace {

constexpr int64_t kRows = 42, kColumns = 1023, kHeld = 40;  // columns 5 to 44 are held

std::vector<double> drawn(DeviceKind device, DType type, Init init, int64_t begin) {
  Runtime runtime({device, 0}, 2);
  ParameterSpec placed;
  placed.parameter.value =
      Tensor::empty(runtime.arena(MemoryClass::parameters), {kRows, kHeld}, type, "weight");
  placed.placement.tensors = {{"w", {kRows, kColumns}, {{1, {{5, 0, kHeld}}}}}};
  placed.init = init;
  const int64_t size = kRows * kHeld - begin;
  const Tensor value = placed.parameter.value.view({kRows * kHeld}).slice(0, begin, size);
  initialize(Shard{.placed = &placed, .begin = begin, .value = value}, 7, runtime.stream());
  return to_doubles(value);
}

TEST(CudaInitialize, HasTheBitsOfTheCpu) {
  for (const Init init : {Init{Init::Kind::normal, 0.02}, Init{Init::Kind::xavier_uniform}}) {
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
      for (const int64_t begin : {0, 3, 77}) {
        const std::vector<double> wanted = drawn(DeviceKind::cpu, type, init, begin);
        EXPECT_EQ(drawn(DeviceKind::cuda, type, init, begin), wanted) << name(type) << " " << begin;
        EXPECT_NE(wanted.front(), wanted.back());
      }
    }
  }
}

}  // namespace
}  // namespace megatron::parallel
