// NVIDIA's libraries of another version than the shared object was built with. The test plays
// cuDNN 8.9.7 and cuBLASLt 13.1.0; there is no NCCL.
#include "device/cuda/libraries.h"

#include <gtest/gtest.h>

#include <cstddef>

extern "C" size_t cudnnGetVersion() { return 8907; }
extern "C" size_t cublasLtGetVersion() { return 130100; }

namespace megatron::cuda {
namespace {

TEST(CudaLibraries, VersionsAreTakenApart) {
  const Library cudnn = version_of("cuDNN", 9, 91900);
  EXPECT_EQ(cudnn.major * 1000000 + cudnn.minor * 1000 + cudnn.patch, 9019000);
  const Library nccl = version_of("NCCL", 2, 22807);
  EXPECT_EQ(nccl.major * 1000000 + nccl.minor * 1000 + nccl.patch, 2028007);
  EXPECT_EQ(version_of("cuDNN", 9, 8907).minor, 9);
}

TEST(CudaLibraries, OneOfAnotherMajorVersionIsNamedInOneLine) {
  EXPECT_EQ(mismatch(loaded_libraries("")), "");
  EXPECT_EQ(mismatch(loaded_libraries("cuBLASLt 13,cuDNN 8")), "");
  EXPECT_EQ(mismatch(loaded_libraries("cuBLASLt 13,cuDNN 9")),
            "this build needs cuDNN 9, and 8.9.7 was found; install version 9 or build again");
  EXPECT_TRUE(loaded_libraries("NCCL 2").empty());
}

}  // namespace
}  // namespace megatron::cuda
