#include "inference/stop_text.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace megatron::inference {
namespace {

// Returns the emitted pieces, each followed by "|", and "#" where the text stopped.
std::string given(std::vector<std::string> stops, const std::vector<std::string>& pieces) {
  StopText text(std::move(stops));
  std::string out;
  for (const std::string& piece : pieces) out += text.push(piece) + "|";
  return out + text.finish() + (text.stopped() ? "#" : "");
}

TEST(StopText, LetsAllPassWithoutStops) { EXPECT_EQ(given({}, {"ab", "", "c"}), "ab||c|"); }

TEST(StopText, CutsBeforeTheStop) {
  EXPECT_EQ(given({"STOP"}, {"goSTOPon", "more"}), "go||#");
  EXPECT_EQ(given({"STOP"}, {"STOP"}), "|#");
}

TEST(StopText, HoldsBackWhatMayBecomeAStop) {
  EXPECT_EQ(given({"\n\nUser:"}, {"yes\n", "\nUs", "er: no"}), "yes|||#");
  EXPECT_EQ(given({"\n\nUser:"}, {"yes\n", "\nUp", "s"}), "yes|\n\nUp|s|");
  EXPECT_EQ(given({"abc"}, {"xab"}), "x|ab");  // the end comes first
  EXPECT_EQ(given({"aab"}, {"a", "a", "a", "b"}), "||a||#");
}

TEST(StopText, TakesTheFirstOfSeveral) {
  EXPECT_EQ(given({"cd", "bcd", "zz"}, {"abcde"}), "a|#");
  EXPECT_EQ(given({"b", "abX"}, {"a", "b", "X"}), "|a||#");
}

TEST(StopText, KnowsNoCharacters) { EXPECT_EQ(given({"é!"}, {"caf", "é", "s"}), "caf||és|"); }

TEST(StopText, RefusesAnEmptyStop) { EXPECT_THROW(StopText({"a", ""}), Error); }

}  // namespace
}  // namespace megatron::inference
