#include "tokenizers/added_tokens.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

namespace megatron::tokenizers {
namespace {

// Returns "id[begin,end)" for each token, and the text of each stretch between tokens.
std::string found_in(const AddedTokens& tokens, std::string_view text) {
  const std::vector<Range> origins = character_ranges(text, 0);
  std::string found;
  tokens.split(
      {.bytes = text, .origins = origins.data()}, true,
      [&](TextView rest) { found += fmt::format("'{}' ", rest.bytes); },
      [&](int32_t id, TextView token) {
        const Range range = token.origin(0, token.bytes.size());
        found += fmt::format("{}[{},{}) ", id, range.begin, range.end);
      });
  return found;
}

AddedTokens make_tokens() {
  AddedTokens tokens;
  tokens.add("<b>", 1, {.content = "<b>", .rstrip = true});
  tokens.add("  x", 2, {.content = "  x"});
  tokens.add(" \n", 3, {.content = " \n", .lstrip = true});
  tokens.add("abc", 4, {.content = "abc", .single_word = true});
  tokens.add("bcd", 5, {.content = "bcd"});
  return tokens;
}

TEST(AddedTokensTest, TakeTheSpaceBesideThem) {
  const AddedTokens tokens = make_tokens();
  EXPECT_EQ(found_in(tokens, "a<b>  b"), "'a' 1[1,6) 'b' ");
  EXPECT_EQ(found_in(tokens, "a   \nb"), "'a' 3[1,5) 'b' ");
}

// As in the original, the search continues after the token, not after the white space stripped with
// it.
TEST(AddedTokensTest, ATokenThatBeginsInTheSpaceOfTheOneBefore) {
  EXPECT_EQ(found_in(make_tokens(), "<b>   x!"), "1[0,6) 2[4,7) '!' ");
  EXPECT_EQ(found_in(make_tokens(), "<b> \n x"), "1[0,6) 'x' ");
}

TEST(AddedTokensTest, AWordThatIsNotAloneHidesWhatBeginsInIt) {
  const AddedTokens tokens = make_tokens();
  EXPECT_EQ(found_in(tokens, "abc bcd"), "4[0,3) ' ' 5[4,7) ");
  EXPECT_EQ(found_in(tokens, "abcd"), "'abcd' ");
}

}  // namespace
}  // namespace megatron::tokenizers
