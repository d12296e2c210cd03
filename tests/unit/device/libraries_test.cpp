// NVIDIA's libraries of another version than the shared object was built with. The test plays
// cuDNN 8.9.7 and cuBLASLt 13.1.0; there is no NCCL.
#include "device/cuda/libraries.h"

#include <gtest/gtest.h>

#include <cstddef>

#include "device/cuda/architectures.h"

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

TEST(CudaLibraries, AnNcclThatIsTooOldIsNamed) {
  EXPECT_EQ(mismatch({version_of("NCCL", 2, 21705)}),
            "NCCL 2.18 or later is needed, and 2.17.5 was found; install a later one");
  EXPECT_EQ(mismatch({version_of("NCCL", 2, 21801)}), "");
}

TEST(CudaArchitectures, CodeRunsOnWhatItWasBuiltFor) {
  for (const auto& [built, major, minor] :
       {std::tuple{"90a", 9, 0}, {"80", 8, 6}, {"80,90a", 9, 0}, {"100f", 10, 3}, {"", 7, 5}})
    EXPECT_TRUE(runs_on(built, major, minor)) << built << " on " << major << "." << minor;
  for (const auto& [built, major, minor] :
       {std::tuple{"90a", 10, 0}, {"90a", 8, 9}, {"89", 8, 6}, {"100a", 10, 3}, {"80,90a", 12, 0}})
    EXPECT_FALSE(runs_on(built, major, minor)) << built << " on " << major << "." << minor;
  EXPECT_EQ(no_code_for("90a", "NVIDIA H200", 9, 0), "");
  EXPECT_EQ(
      no_code_for("90a", "NVIDIA A100", 8, 0),
      "this build has kernels for compute capability 90a, and NVIDIA A100 has 8.0; build with "
      "-DMEGATRON_CUDA_ARCHITECTURES=80, or hide that GPU by CUDA_VISIBLE_DEVICES");
}

}  // namespace
}  // namespace megatron::cuda
