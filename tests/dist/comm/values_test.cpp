// Exchange of host values among ranks.
#include "comm/values.h"

#include <gtest/gtest.h>

#include "dist/ranks.h"

namespace megatron {
namespace {

TEST(Values, BytesOfAnyNumberReachAllRanks) {
  testing::each_rank(3, [](comm::Group& world, Runtime& runtime) {
    for (const size_t size : {0u, 1u, 2047u, 2048u, 2049u, 100'000u}) {
      std::string expected;
      for (size_t i = 0; i < size; ++i) expected += static_cast<char>(i * 31 % 251);
      for (int root = 0; root < world.size(); ++root) {
        std::string bytes = world.rank() == root ? expected : "others";
        comm::broadcast(world, runtime.stream(), bytes, root, "test");
        EXPECT_EQ(bytes, expected);
      }
    }
  });
}

}  // namespace
}  // namespace megatron
