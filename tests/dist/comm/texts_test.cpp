#include "comm/texts.h"

#include <gtest/gtest.h>

#include "dist/ranks.h"

namespace megatron::comm {
namespace {

using Texts = std::vector<std::string>;

TEST(Texts, OfAllRanksComeInTheirOrder) {
  for (const Texts& texts : {Texts{"alone"}, Texts{"first", "", "the third"}, Texts{"", ""}}) {
    testing::each_rank(static_cast<int>(texts.size()), [&](Group& world, Runtime& runtime) {
      EXPECT_EQ(
          gather_texts(world, runtime.stream(), texts[static_cast<size_t>(world.rank())], "t"),
          texts);
    });
  }
}

}  // namespace
}  // namespace megatron::comm
