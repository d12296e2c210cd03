// The algorithms of one product: each is timed, and the one that is chosen is taken.
#include "kernels/cuda_products.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "device/wing.h"
#include "kernels/table.h"

namespace megatron::kernels {
namespace {

class CudaProduct : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(cuda_state().wing, nullptr) << cuda_state().why_not; }

  Tensor filled(Shape shape, double step) {
    Tensor t = Tensor::empty(runtime.arena(MemoryClass::activations), shape, DType::f32, "t");
    std::vector<double> values(static_cast<size_t>(t.elements()));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = std::sin(step * static_cast<double>(i + 1));
    copy_from(t, values);
    return t;
  }
  GemmArgs product() {
    GemmArgs args;
    args.a = filled({3, 300}, 0.7);
    args.b = filled({300, 5}, 1.3);
    args.out = filled({3, 5}, 1);
    return args;
  }
  std::vector<double> run(const GemmArgs& args) {
    table(DeviceKind::cuda).gemm(args, runtime.stream());
    runtime.stream().synchronize();
    return to_doubles(args.out);
  }

  Runtime runtime{{DeviceKind::cuda}, 1};
};

TEST_F(CudaProduct, IsComputedByTheAlgorithmThatWasChosen) {
  const GemmArgs args = product();
  const std::vector<double> first = run(args);
  const std::vector<double> seconds = cuda_products().time(args, runtime.stream(), 2);
  ASSERT_GT(seconds.size(), 1u) << "K is deep: one chain, or sums of parts";
  bool differs = false;
  for (size_t i = 0; i < seconds.size(); ++i) {
    EXPECT_GE(seconds[i], 0);
    cuda_products().choose(args, runtime.stream(), static_cast<int>(i));
    const std::vector<double> now = run(args);
    EXPECT_EQ(now, run(args)) << "algorithm " << i << " repeats itself";
    for (size_t j = 0; j < now.size(); ++j) EXPECT_NEAR(now[j], first[j], 1e-4);
    differs = differs || now != first;
  }
  EXPECT_TRUE(differs) << "sums of parts are rounded elsewhere";
  cuda_products().choose(args, runtime.stream(), 0);
  EXPECT_EQ(run(args), first);
}

TEST_F(CudaProduct, HasNoAlgorithmBehindTheLast) {
  const GemmArgs args = product();
  EXPECT_THROW(cuda_products().choose(args, runtime.stream(), 1000), InternalError);
  EXPECT_THROW(cuda_products().choose(args, runtime.stream(), -1), InternalError);
}

TEST_F(CudaProduct, HasNoneWithoutResult) {
  GemmArgs args = product();
  args.a = args.a.slice(0, 0, 0);
  args.out = args.out.slice(0, 0, 0);
  EXPECT_TRUE(cuda_products().time(args, runtime.stream(), 1).empty());
}

}  // namespace
}  // namespace megatron::kernels
