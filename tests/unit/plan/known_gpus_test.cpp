#include "plan/known_gpus.h"

#include <gtest/gtest.h>

namespace megatron::plan {
namespace {

TEST(KnownGpus, AreFoundByTheNameThatTheDriverTells) {
  const std::pair<const char*, double> known[] = {{"NVIDIA H200", 989e12},
                                                  {"NVIDIA H200 NVL", 835e12},
                                                  {"NVIDIA H100 80GB HBM3", 989e12},
                                                  {"NVIDIA H100 PCIe", 756e12},
                                                  {"NVIDIA GH200 480GB", 989e12},
                                                  {"NVIDIA A100-SXM4-40GB", 312e12},
                                                  {"NVIDIA L4", 121e12},
                                                  {"NVIDIA L40S", 362e12},
                                                  {"NVIDIA GB200", 2500e12}};
  for (const auto& [name, peak] : known) {
    ASSERT_TRUE(data_sheet(name).has_value()) << name;
    EXPECT_EQ(data_sheet(name)->half_peak, peak) << name;
  }
  for (const char* unknown :
       {"NVIDIA L40", "NVIDIA H2001", "NVIDIA A100X", "NVIDIA H100 80GB HBM2e",
        "NVIDIA H200 MIG 1g.18gb", "NVIDIA GeForce RTX 4090 D", "CUDA shim on the CPU", ""})
    EXPECT_FALSE(data_sheet(unknown).has_value()) << unknown;
}

}  // namespace
}  // namespace megatron::plan
