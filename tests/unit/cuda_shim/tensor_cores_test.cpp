// Products on tensor cores and asynchronous copies as the shim simulates them, with deliberate
// faults.
#include "kernels/cuda/tensor_cores.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cuda_shim/control.h"
#include "kernels/cuda/dynamic_shared.h"

namespace {

using megatron::kernels::cuda::Matrices;

// Faults of a kernel.
enum class Fault { none, no_wait, no_sync, no_end, misaligned };

constexpr int kRows = 16, kInner = 16, kColumns = 8;
constexpr size_t kShared = (kRows * kInner + kInner * kColumns) * 2 + 16;

// c[16,8] = a[16,16] b, with b as [16,8] or, if `turned`, as its transpose [8,16].
template <class T, bool turned, Fault fault>
__global__ void multiply(const T* a, const T* b, float* c) {
  T* const left = reinterpret_cast<T*>(megatron::kernels::cuda::dynamic_shared());
  T* const right = left + kRows * kInner;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  using namespace megatron::kernels::cuda;
  if (warp == 1) {
    copy_later<16>(left + 8 * lane, a + 8 * lane, true);
    copy_later<16>(right + 8 * (lane % 16), b + 8 * (lane % 16), true);
    if (fault == Fault::no_end) return;
    if (fault != Fault::no_wait) wait_for_copies();
  }
  if (fault != Fault::no_sync) __syncthreads();
  if (warp == 0) {
    const Matrices x = load_matrices(left + lane % 16 * kInner + lane / 16 * 8 +
                                     (fault == Fault::misaligned ? 1 : 0));
    const Matrices y = turned ? load_matrices(right + lane % 8 * kInner + lane / 8 % 2 * 8)
                              : load_transposed(right + lane % 16 * kColumns);
    float sum[4] = {};
    multiply_add<T>(x, y.at[0], y.at[1], sum);
    for (int n = 0; n < 4; ++n)
      c[(lane / 4 + n / 2 * 8) * kColumns + lane % 4 * 2 + n % 2] = sum[n];
  }
  if (fault == Fault::no_wait) wait_for_copies();
}

template <class T>
class TensorCores : public ::testing::Test {
 protected:
  void SetUp() override {
    shim_problems();
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    for (int i = 0; i < kRows * kInner; ++i) a_.push_back(T(static_cast<float>(i % 13 - 6)));
    for (int i = 0; i < kInner * kColumns; ++i) b_.push_back(T(static_cast<float>(i % 11 - 5)));
    ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&memory_), kBytes), cudaSuccess);
    ASSERT_EQ(cudaMemcpyAsync(memory_, a_.data(), kA, cudaMemcpyDefault, stream_), cudaSuccess);
    ASSERT_EQ(cudaMemcpyAsync(memory_ + kA, b_.data(), kB, cudaMemcpyDefault, stream_),
              cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  }
  void TearDown() override {
    shim_set("descending", 0);
    shim_problems();
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
    EXPECT_EQ(cudaFree(memory_), cudaSuccess);
    EXPECT_STREQ(shim_problems(), "");
  }

  template <bool turned, Fault fault = Fault::none>
  std::vector<float> run() {
    cudaLaunchConfig_t config{};
    config.gridDim = 1;
    config.blockDim = 64;
    config.dynamicSmemBytes = kShared;
    config.stream = stream_;
    auto* const c = reinterpret_cast<float*>(memory_ + kA + kB);
    EXPECT_EQ(
        cudaLaunchKernelEx(&config, multiply<T, turned, fault>, reinterpret_cast<const T*>(memory_),
                           reinterpret_cast<const T*>(memory_ + kA), c),
        cudaSuccess);
    std::vector<float> values(kRows * kColumns);
    if (cudaStreamSynchronize(stream_) != cudaSuccess) return {};
    EXPECT_EQ(cudaMemcpy(values.data(), c, values.size() * sizeof(float), cudaMemcpyDefault),
              cudaSuccess);
    return values;
  }
  std::vector<float> product(bool turned) const {
    std::vector<float> values;
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < kColumns; ++j) {
        float sum = 0;
        for (int k = 0; k < kInner; ++k) {
          const int at = turned ? j * kInner + k : k * kColumns + j;
          sum +=
              float(a_[static_cast<size_t>(i * kInner + k)]) * float(b_[static_cast<size_t>(at)]);
        }
        values.push_back(sum);
      }
    }
    return values;
  }

  static constexpr size_t kA = kRows * kInner * 2, kB = kInner * kColumns * 2;
  static constexpr size_t kBytes = kA + kB + kRows * kColumns * sizeof(float);
  std::vector<T> a_, b_;
  cudaStream_t stream_ = nullptr;
  std::byte* memory_ = nullptr;
};
using Types = ::testing::Types<__nv_bfloat16, __half>;
TYPED_TEST_SUITE(TensorCores, Types);

TYPED_TEST(TensorCores, MultiplyInEitherOrderOfThreads) {
  for (const int descending : {0, 1}) {
    ASSERT_TRUE(shim_set("descending", descending));
    EXPECT_EQ(this->template run<false>(), this->product(false));
    EXPECT_EQ(this->template run<true>(), this->product(true));
  }
}

TYPED_TEST(TensorCores, ShowAMissingWaitOrSync) {
  EXPECT_NE((this->template run<false, Fault::no_wait>()), this->product(false));
  EXPECT_NE((this->template run<false, Fault::no_sync>()), this->product(false));
}

TYPED_TEST(TensorCores, TellOfCopiesNobodyWaitsForAndOfMisalignedRows) {
  EXPECT_TRUE((this->template run<false, Fault::no_end>()).empty());
  std::string text = shim_problems();
  EXPECT_NE(text.find("before the copies that it began"), std::string::npos) << text;
  EXPECT_TRUE((this->template run<false, Fault::misaligned>()).empty());
  text = shim_problems();
  EXPECT_NE(text.find("no multiple of 16 bytes"), std::string::npos) << text;
}

}  // namespace
