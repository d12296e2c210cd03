#include "settings/runtime_settings.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace megatron::settings {
namespace {

// What CUDA would be given by these settings.
std::string loading(int64_t ranks, const std::string& device, const std::string& backend) {
  settings::RuntimeSettings s;
  s.ranks = ranks;
  s.device = device;
  s.distributed_backend = backend;
  s.prepare_cuda();
  const char* const output = std::getenv("CUDA_MODULE_LOADING");
  return output == nullptr ? "" : output;
}

TEST(RuntimeSettings, KernelsAreLoadedAtOnceForSeveralRanks) {
  ::unsetenv("CUDA_MODULE_LOADING");
  EXPECT_EQ(loading(1, "cuda", "auto"), "");
  EXPECT_EQ(loading(2, "cpu", "auto"), "");
  EXPECT_EQ(loading(2, "cuda", "gloo"), "");
  EXPECT_EQ(loading(2, "auto", "auto"), "EAGER");
  ::setenv("CUDA_MODULE_LOADING", "LAZY", 1);
  EXPECT_EQ(loading(2, "cuda", "nccl"), "LAZY") << "the user knows better";
  ::unsetenv("CUDA_MODULE_LOADING");
}

}  // namespace
}  // namespace megatron::settings
