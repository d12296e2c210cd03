#include "comm/launch/line_merger.h"

#include <gtest/gtest.h>

namespace megatron::comm::launch {
namespace {

TEST(LineMerger, LinesComeWholeWithTheirRank) {
  LineMerger lines(2, true);
  EXPECT_EQ(lines.add(0, "one\ntw"), "[0] one\n");
  EXPECT_EQ(lines.add(1, "uno\n\ndu"), "[1] uno\n[1] \n");
  EXPECT_EQ(lines.add(0, "o"), "");
  EXPECT_EQ(lines.add(0, "\n"), "[0] two\n");
  EXPECT_EQ(lines.end(1), "[1] du\n");
  EXPECT_EQ(lines.end(1), "");
  EXPECT_EQ(lines.end(0), "");
}

TEST(LineMerger, WithoutPrefix) {
  LineMerger lines(1, false);
  EXPECT_EQ(lines.add(0, std::string("a\0b\n", 4)), std::string("a\0b\n", 4));
  EXPECT_EQ(lines.add(0, "last"), "");
  EXPECT_EQ(lines.end(0), "last\n");
}

TEST(LineMerger, ALineWithoutEndIsCut) {
  LineMerger lines(1, true);
  const std::string piece(kLongestLine / 4, 'x');
  for (int i = 0; i < 3; ++i) EXPECT_EQ(lines.add(0, piece), "");
  EXPECT_EQ(lines.add(0, piece).size(), kLongestLine + 5);
  EXPECT_EQ(lines.add(0, "y\n"), "[0] y\n");
}

}  // namespace
}  // namespace megatron::comm::launch
