#include "settings/runtime_settings.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "device/stream.h"

namespace megatron::settings {
namespace {

// Returns the CUDA options that follow from these settings.
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

TEST(RuntimeSettings, AttentionsWorkspaceIsTheFlagsOrThatOfAPlan) {
  Runtime runtime({DeviceKind::meta}, 1);
  RuntimeSettings s;
  s.device = "cpu";
  const auto bytes = [&] {
    s.limit_kernels(runtime.stream());
    return runtime.stream().attention_workspace();
  };
  EXPECT_EQ(bytes(), int64_t{768} << 20);
  EXPECT_FALSE(s.attention_workspace_note());
  s.planned_attention_mib = 1280;
  s.planned_attention_cause = "it fits";
  EXPECT_EQ(bytes(), int64_t{1280} << 20);
  EXPECT_EQ(s.attention_workspace_note()->value, "1280");
  s.attention_workspace_mib = 5;
  EXPECT_EQ(bytes(), int64_t{5} << 20);
  EXPECT_EQ(s.attention_workspace_note()->value, "none") << "on cpu";
}

}  // namespace
}  // namespace megatron::settings
