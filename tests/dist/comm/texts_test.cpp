#include "comm/texts.h"

#include <gtest/gtest.h>

#include "dist/ranks.h"

namespace megatron::comm {
namespace {

using Texts = std::vector<std::string>;

TEST(Texts, OfOneRankGoToAll) {
  for (const int ranks : {1, 3}) {
    testing::each_rank(ranks, [&](Group& world, Runtime& runtime) {
      for (const std::string& text : Texts{"of the last", "", std::string("\0 and \n", 7)}) {
        const bool sends = world.rank() == ranks - 1;
        EXPECT_EQ(
            broadcast_text(world, runtime.stream(), sends ? text : "not sent", ranks - 1, "t"),
            text);
      }
    });
  }
}

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
