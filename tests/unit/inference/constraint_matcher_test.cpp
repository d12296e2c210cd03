#include <gtest/gtest.h>

#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "constraint_cases.h"
#include "inference/constraint/automaton.h"
#include "inference/constraint/matcher.h"

namespace megatron::inference {
namespace {

constexpr const char* kTree =
    R"({"type":"object","properties":{"name":{"type":"string"},
        "leaves":{"type":"array","items":{"$ref":"#"}}},
        "required":["name","leaves"],"additionalProperties":false})";

TEST(ConstraintMatcher, SaysWhenTheTextMayAndMustEnd) {
  Matcher matcher(Grammar::from_regex("ab?"), byte_tokens());
  std::vector<uint64_t> mask(6, ~uint64_t{0});
  bool complete = true;
  matcher.allowed(mask, complete);
  EXPECT_FALSE(complete);
  EXPECT_FALSE(matcher.complete());
  EXPECT_EQ(mask[1], uint64_t{1} << ('a' - 64));
  EXPECT_EQ(mask[0] | mask[2] | mask[3] | mask[4] | mask[5], 0u);
  matcher.accept('a');
  EXPECT_TRUE(matcher.complete());
  EXPECT_FALSE(matcher.must_end());
  matcher.accept('b');
  EXPECT_TRUE(matcher.complete());
  EXPECT_TRUE(matcher.must_end());
  matcher.allowed(mask, complete);
  EXPECT_TRUE(complete);
  for (const uint64_t word : mask) EXPECT_EQ(word, 0u);
}

TEST(ConstraintMatcher, RefusesOtherTokensAndStaysWhereItIs) {
  Matcher matcher(Grammar::from_regex("ab"), byte_tokens());
  EXPECT_THROW(matcher.accept('b'), Error);
  EXPECT_THROW(matcher.accept(-1), Error);
  EXPECT_THROW(matcher.accept(1000), Error);
  matcher.accept('a');
  matcher.accept('b');
  EXPECT_TRUE(matcher.must_end());
  std::vector<uint64_t> mask(3);
  bool complete = false;
  EXPECT_THROW(matcher.allowed(mask, complete), Error);  // 256 tokens need 4 words
}

TEST(ConstraintMatcher, CopiesGoTheirOwnWays) {
  Matcher one(Grammar::from_regex("a*b|a*c"), byte_tokens());
  one.accept('a');
  Matcher other = one;
  one.accept('b');
  EXPECT_TRUE(one.must_end());
  other.accept('c');
  EXPECT_TRUE(other.must_end());
}

TEST(ConstraintMatcher, ThreadsShareAGrammar) {
  const auto grammar = Grammar::from_json_schema(Json::parse(kTree));
  const auto draw = [](const std::shared_ptr<const Grammar>& from, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::string all;
    for (int i = 0; i < 10; ++i) {
      const auto ids = RandomText(byte_tokens(), random).draw(Matcher(from, byte_tokens()), 60);
      all += text_of(*byte_tokens(), ids.value());
    }
    return all;
  };
  std::vector<std::string> texts(4);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < texts.size(); ++i)
    threads.emplace_back([&, i] { texts[i] = draw(grammar, i); });
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < texts.size(); ++i)
    EXPECT_EQ(texts[i], draw(Grammar::from_json_schema(Json::parse(kTree)), i));
}

TEST(ConstraintAutomaton, AdoptsPlacesOfAnother) {
  const auto grammar = Grammar::from_json_schema(Json::parse(kTree));
  Automaton old(grammar->network(), byte_tokens());
  const std::string text = R"({"name":"a\"","leaves":[{"name":"b","leaves":[]},{"name":"c)";
  const std::string rest = R"(","leaves":[{"name":"","leaves":[]}]}]})";
  int32_t place = old.start();
  for (const char c : text) ASSERT_GE(place = old.accept(place, static_cast<uint8_t>(c)), 0);
  Automaton made(grammar->network(), byte_tokens());
  int32_t there = made.adopt(old, place);
  for (const char c : rest) {
    std::vector<uint64_t> mask(4), wanted(4);
    bool complete = false, wanted_complete = false;
    made.allowed(there, mask, complete);
    old.allowed(place, wanted, wanted_complete);
    EXPECT_EQ(mask, wanted);
    EXPECT_EQ(complete, wanted_complete);
    ASSERT_GE(place = old.accept(place, static_cast<uint8_t>(c)), 0);
    ASSERT_GE(there = made.accept(there, static_cast<uint8_t>(c)), 0);
  }
  EXPECT_TRUE(made.must_end(there));
}

// An automaton that is full of states is replaced by another.
TEST(ConstraintAutomaton, IsFollowedByAnother) {
  const auto grammar = Grammar::from_regex("[ab]*a[ab]{1000}");
  const auto first = grammar->automaton(byte_tokens());
  EXPECT_EQ(grammar->automaton(byte_tokens()), first);
  std::mt19937_64 random(6);
  Matcher matcher(grammar, byte_tokens());
  std::string text;
  while (grammar->automaton(byte_tokens()) == first) {
    ASSERT_LT(text.size(), 20'000u);
    text += "ab"[random() % 2];
    matcher.accept(text.back());
  }
  EXPECT_TRUE(first->is_full());
  for (int i = 0; i < 1100; ++i) {
    text += "ab"[random() % 2];
    matcher.accept(text.back());
    EXPECT_EQ(matcher.complete(), text[text.size() - 1001] == 'a');
  }
}

}  // namespace
}  // namespace megatron::inference
