// Pre-tokenizers: pieces, origins, sequences of all kinds, and invalid settings.
#include "tokenizers/pre_tokenizers/pre_tokenizer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "tokenizers/normalizers/normalizer.h"

namespace megatron::tokenizers {
namespace {

struct Piece {
  std::string text;
  uint32_t begin, end;
  bool operator==(const Piece&) const = default;
};
using Pieces = std::vector<Piece>;
using Strings = std::vector<std::string>;

std::ostream& operator<<(std::ostream& out, const Piece& piece) {
  return out << '"' << piece.text << "\" " << piece.begin << '-' << piece.end;
}

Pieces split(std::string_view settings, std::string_view input) {
  RegexScratch scratch;
  Pieces pieces;
  const std::vector<Range> origins = character_ranges(input, 0);
  make_pre_tokenizer(Json::parse(settings))
      ->split({.bytes = input, .origins = origins.data()}, scratch, [&](TextView piece) {
        const Range origin = piece.origin(0, piece.bytes.size());
        pieces.push_back({std::string(piece.bytes), origin.begin, origin.end});
      });
  return pieces;
}

Strings texts(std::string_view settings, std::string_view input) {
  Strings strings;
  for (const Piece& piece : split(settings, input)) strings.push_back(piece.text);
  return strings;
}

std::string split_by(std::string_view pattern, std::string_view behavior, bool invert = false) {
  return std::string(R"({"type":"Split","pattern":)")
      .append(pattern)
      .append(R"(,"behavior":")")
      .append(behavior)
      .append(invert ? R"(","invert":true})" : R"(","invert":false})");
}

TEST(SplitTest, EveryBehaviorOnTextAndRegex) {
  for (const char* dash : {R"({"String":"-"})", R"({"Regex":"-"})"}) {
    const auto cut = [&](const char* behavior, bool invert = false) {
      return texts(split_by(dash, behavior, invert), "the-final--countdown");
    };
    EXPECT_EQ(cut("Removed"), (Strings{"the", "final", "countdown"}));
    EXPECT_EQ(cut("Isolated"), (Strings{"the", "-", "final", "-", "-", "countdown"}));
    EXPECT_EQ(cut("MergedWithPrevious"), (Strings{"the-", "final-", "-", "countdown"}));
    EXPECT_EQ(cut("MergedWithNext"), (Strings{"the", "-final", "-", "-countdown"}));
    EXPECT_EQ(cut("Contiguous"), (Strings{"the", "-", "final", "--", "countdown"}));
    EXPECT_EQ(cut("Removed", true), (Strings{"-", "-", "-"}));
    EXPECT_EQ(cut("MergedWithNext", true), (Strings{"the-", "final-", "-", "countdown"}));
  }
}

TEST(SplitTest, EmptyMatchesCut) {
  EXPECT_EQ(texts(split_by(R"({"String":""})", "Isolated"), "a\u00e9"), (Strings{"a", "\u00e9"}));
  EXPECT_EQ(texts(split_by(R"({"Regex":"x*"})", "MergedWithNext"), "abxxc"),
            (Strings{"a", "b", "xxc"}));
}

TEST(MetaspaceTest, PrependsAndCuts) {
  const char* always = R"({"type":"Metaspace","replacement":"_","prepend_scheme":"always"})";
  EXPECT_EQ(split(always, "Hey  you"), (Pieces{{"_Hey", 0, 3}, {"_", 3, 4}, {"_you", 4, 8}}));
  EXPECT_EQ(texts(always, " a"), (Strings{"_a"}));
  EXPECT_EQ(texts(always, "_a_"), (Strings{"_a", "_"}));
  EXPECT_EQ(
      texts(R"({"type":"Metaspace","replacement":"_","prepend_scheme":"never","split":false})",
            "a b"),
      (Strings{"a_b"}));
  EXPECT_EQ(texts(R"({"type":"Metaspace","replacement":"_","add_prefix_space":false})", "a"),
            (Strings{"a"}));
  EXPECT_EQ(texts(R"({"type":"Metaspace","replacement":"_","add_prefix_space":true})", "a"),
            (Strings{"_a"}));
}

TEST(MetaspaceTest, FirstIsWhereTheInputBegins) {
  const char* first =
      R"({"type":"Metaspace","replacement":"_","prepend_scheme":"first","split":false})";
  const auto pre_tokenizer = make_pre_tokenizer(Json::parse(first));
  RegexScratch scratch;
  std::string piece;
  const auto keep = [&](TextView view) { piece = view.bytes; };
  const TextView whole{.bytes = "abc"};
  pre_tokenizer->split(whole.part(0, 2), scratch, keep);
  EXPECT_EQ(piece, "_ab");
  pre_tokenizer->split(whole.part(1, 3), scratch, keep);
  EXPECT_EQ(piece, "bc");
  EXPECT_EQ(
      texts(std::string(R"({"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},)") +
                first + "]}",
            "ab cd"),
      (Strings{"_ab", "cd"}));
}

TEST(WordSplitterTest, ByClassesOfCharacters) {
  EXPECT_EQ(split(R"({"type":"Whitespace"})", "a_1 \u00e9!?\u3000x"),
            (Pieces{{"a_1", 0, 3}, {"\u00e9", 4, 6}, {"!?", 6, 8}, {"x", 11, 12}}));
  EXPECT_EQ(texts(R"({"type":"WhitespaceSplit"})", " a!\tb "), (Strings{"a!", "b"}));
  EXPECT_EQ(texts(R"({"type":"BertPreTokenizer"})", "a$b, \u3002c"),
            (Strings{"a", "$", "b", ",", "\u3002", "c"}));
  EXPECT_EQ(texts(R"({"type":"Punctuation"})", "a.. b"), (Strings{"a", ".", ".", " b"}));
  EXPECT_EQ(texts(R"({"type":"Punctuation","behavior":"Contiguous"})", "a.. b"),
            (Strings{"a", "..", " b"}));
  EXPECT_EQ(texts(R"({"type":"Digits","individual_digits":true})", "a12\u00bd"),
            (Strings{"a", "1", "2", "\u00bd"}));
  EXPECT_EQ(texts(R"({"type":"Digits"})", "a12b"), (Strings{"a", "12", "b"}));
  EXPECT_EQ(texts(R"({"type":"CharDelimiterSplit","delimiter":"\u00e9"})", "a\u00e9b\u00e9"),
            (Strings{"a", "b"}));
  EXPECT_EQ(texts(R"({"type":"UnicodeScripts"})", "  Apples \u3042\u4eac \u30ab"),
            (Strings{"Apples ", "\u3042\u4eac \u30ab"}));
  EXPECT_EQ(split(R"({"type":"FixedLength","length":2})", "a\u00e9b"),
            (Pieces{{"a\u00e9", 0, 3}, {"b", 3, 4}}));
  EXPECT_EQ(texts(R"({"type":"FixedLength"})", "Hello world"), (Strings{"Hello", " worl", "d"}));
}

TEST(ByteLevelTest, StaysInBytesAtTheEndAndIsSpeltOutBefore) {
  const char* alone = R"({"type":"ByteLevel","add_prefix_space":true})";
  EXPECT_EQ(split(alone, "a b"), (Pieces{{" a", 0, 1}, {" b", 1, 3}}));
  EXPECT_TRUE(make_pre_tokenizer(Json::parse(alone))->byte_level());
  const std::string before =
      R"({"type":"Sequence","pretokenizers":[{"type":"Sequence",)"
      R"("pretokenizers":[{"type":"ByteLevel","add_prefix_space":false,)"
      R"("use_regex":false}]},{"type":"Split","pattern":{"String":"\u0120"},)"
      R"("behavior":"MergedWithNext"}]})";
  EXPECT_FALSE(make_pre_tokenizer(Json::parse(before))->byte_level());
  EXPECT_EQ(split(before, "a \u00e9"), (Pieces{{"a", 0, 1}, {"\u0120\u00c3\u00a9", 1, 4}}));
  const char* last = R"({"type":"Sequence","pretokenizers":[{"type":"Digits"},{"type":"Sequence",)"
                     R"("pretokenizers":[{"type":"ByteLevel"},{"type":"Sequence",)"
                     R"("pretokenizers":[]}]}]})";
  EXPECT_TRUE(make_pre_tokenizer(Json::parse(last))->byte_level());
  EXPECT_EQ(texts(last, "a1"), (Strings{" a", " 1"}));
}

TEST(PreTokenizerTest, RefusesByName) {
  const auto message = [](std::string_view settings) -> std::string {
    try {
      make_pre_tokenizer(Json::parse(settings));
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  const auto names = [&](std::string_view settings, std::string_view what) {
    EXPECT_NE(message(settings).find(what), std::string::npos) << message(settings);
  };
  names(R"({"type":"Sentences"})", "'Sentences'");
  names(R"({"type":"Split","pattern":{"String":"a"},"behavior":"Kept"})", "'Kept'");
  names(R"({"type":"Split","pattern":3,"behavior":"Removed"})", "pattern");
  names(R"({"type":"Metaspace","replacement":"__"})", "'__'");
  names(R"({"type":"Metaspace"})", "replacement");
  names(R"({"type":"Metaspace","replacement":"_","prepend_scheme":"last"})", "'last'");
  names(
      R"({"type":"Metaspace","replacement":"_","prepend_scheme":"always","add_prefix_space":false})",
      "add_prefix_space");
  names(R"({"type":"FixedLength","length":0})", "length");
  names(R"({"type":"Digits","individual_digits":"yes"})", "individual_digits");
  names(R"({"type":"CharDelimiterSplit"})", "delimiter");
  EXPECT_EQ(make_pre_tokenizer(Json()), nullptr);
}

}  // namespace
}  // namespace megatron::tokenizers
