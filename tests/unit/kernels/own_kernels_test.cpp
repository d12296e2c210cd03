// What a back-end leaves to composed definitions is found, and refused by name.
#include "kernels/own_kernels.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace megatron::kernels {
namespace {

TEST(OwnKernels, OfTheCpuAreComplete) {
  EXPECT_TRUE(composed_kernels(table(DeviceKind::cpu)).empty());
  EXPECT_NO_THROW(require_own_kernels(table(DeviceKind::cpu), DeviceKind::cpu));
}

TEST(OwnKernels, ThatAreMissingAreNamed) {
  Table some = table(DeviceKind::cpu);
  some.softmax = nullptr;  // not hot
  EXPECT_TRUE(composed_kernels(some).empty());
  some.attention = nullptr;
  some.adam = nullptr;
  EXPECT_EQ(composed_kernels(some), (std::vector<std::string_view>{"attention", "adam"}));
  try {
    require_own_kernels(some, DeviceKind::cuda);
    FAIL();
  } catch (const Error& error) {
    const std::string text = error.what();
    for (const char* word :
         {"cuda has no kernel for", "attention, adam", "--allow-composed", "--device cpu"})
      EXPECT_NE(text.find(word), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace megatron::kernels
