// Normalizers: texts, origins, texts that need no copy, and invalid settings.
#include "tokenizers/normalizers/normalizer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "tokenizers/normalizers/character_map.h"
#include "tokenizers/unicode/grapheme.h"

namespace megatron::tokenizers {
namespace {

std::unique_ptr<Normalizer> make(std::string_view settings) {
  return make_normalizer(Json::parse(settings));
}

std::string normalize(std::string_view settings, std::string_view input) {
  Text text({.bytes = input});
  make(settings)->normalize(text);
  return std::string(text.bytes());
}

// The origin of each character of the result, stored at its first byte.
std::vector<Range> origins(std::string_view settings, std::string_view input) {
  const std::vector<Range> ranges = character_ranges(input, 0);
  Text text({.bytes = input, .origins = ranges.data()});
  make(settings)->normalize(text);
  std::vector<Range> found;
  for (size_t i = 0; i < text.bytes().size(); ++i) {
    if ((text.bytes()[i] & 0xc0) != 0x80) found.push_back(text.view().origins[i]);
  }
  return found;
}

using Ranges = std::vector<Range>;

TEST(NormalFormTest, ComposesAndDecomposes) {
  EXPECT_EQ(normalize(R"({"type":"NFC"})", "e\u0301x"), "\u00e9x");
  EXPECT_EQ(normalize(R"({"type":"NFD"})", "\u1e69"), "s\u0323\u0307");
  EXPECT_EQ(normalize(R"({"type":"NFC"})", "\u1e0b\u0323"), "\u1e0d\u0307");
  EXPECT_EQ(normalize(R"({"type":"NFKC"})", "\ufb01 \u2460\u1e9b\u0323"), "fi 1\u1e69");
  EXPECT_EQ(normalize(R"({"type":"NFKD"})", "\uac01\u00bd"), "\u1100\u1161\u11a81\u20442");
  EXPECT_EQ(normalize(R"({"type":"NFC"})", "\u1100\u1161\u11a8"), "\uac01");
}

TEST(NormalFormTest, LeavesWhatUnicode9DoesNotHave) {
  EXPECT_EQ(normalize(R"({"type":"NFC"})", "\U00011935\U00011930"), "\U00011935\U00011930");
  EXPECT_EQ(normalize(R"({"type":"NFD"})", "\U00011938"), "\U00011938");
}

TEST(NormalFormTest, Origins) {
  EXPECT_EQ(origins(R"({"type":"NFC"})", "ae\u0301b"), (Ranges{{0, 1}, {1, 2}, {4, 5}}));
  EXPECT_EQ(origins(R"({"type":"NFD"})", "a\u00e9b"), (Ranges{{0, 1}, {1, 3}, {1, 3}, {3, 4}}));
  EXPECT_EQ(origins(R"({"type":"NFKC"})", "\ufb01x"), (Ranges{{0, 3}, {0, 3}, {3, 4}}));
}

TEST(NormalizerTest, ANormalTextIsNotCopied) {
  const std::string input = "plain \u00e9 text";
  for (const char* settings :
       {R"({"type":"NFC"})", R"({"type":"Lowercase"})", R"({"type":"StripAccents"})",
        R"({"type":"Nmt"})", R"({"type":"Strip"})",
        R"({"type":"Replace","pattern":{"String":"xy"},"content":"z"})",
        R"({"type":"Replace","pattern":{"Regex":"q+"},"content":"z"})",
        R"({"type":"BertNormalizer","strip_accents":false})"}) {
    Text text({.bytes = input});
    make(settings)->normalize(text);
    EXPECT_EQ(text.bytes().data(), input.data()) << settings;
  }
}

TEST(NormalizerTest, LettersOneByOne) {
  EXPECT_EQ(normalize(R"({"type":"Lowercase"})", "\u03a3\u03a3A\u0130\u00df"),
            "\u03c3\u03c3ai\u0307\u00df");
  EXPECT_EQ(origins(R"({"type":"Lowercase"})", "\u0130b"), (Ranges{{0, 2}, {0, 2}, {2, 3}}));
  EXPECT_EQ(normalize(R"({"type":"StripAccents"})", "e\u0301\u00e9"), "e\u00e9");
  EXPECT_EQ(normalize(R"({"type":"Nmt"})", "a\x01\tb\u200b\u2581c\x7f"), "a b  c");
  EXPECT_EQ(normalize(R"({"type":"ByteLevel"})", "a \u00e9"), "a\u0120\u00c3\u00a9");
  EXPECT_EQ(origins(R"({"type":"ByteLevel"})", "a\u00e9"), (Ranges{{0, 1}, {1, 3}, {1, 3}}));
}

TEST(NormalizerTest, StripPrependReplace) {
  EXPECT_EQ(normalize(R"({"type":"Strip","strip_left":true,"strip_right":false})", "\u3000 a "),
            "a ");
  EXPECT_EQ(normalize(R"({"type":"Strip"})", " \t "), "");
  EXPECT_EQ(normalize(R"({"type":"Prepend","prepend":"ab"})", "x"), "abx");
  EXPECT_EQ(normalize(R"({"type":"Prepend","prepend":"ab"})", ""), "");
  EXPECT_EQ(origins(R"({"type":"Prepend","prepend":"ab"})", "xy"),
            (Ranges{{0, 1}, {0, 1}, {0, 1}, {1, 2}}));
  EXPECT_EQ(normalize(R"({"type":"Replace","pattern":{"String":"''"},"content":"\""})", "''a'''"),
            "\"a\"'");
  EXPECT_EQ(normalize(R"({"type":"Replace","pattern":{"Regex":"\\s+"},"content":" "})", "a \n b"),
            "a b");
  EXPECT_EQ(normalize(R"({"type":"Replace","pattern":{"String":""},"content":"-"})", "ab"),
            "-a-b-");
  EXPECT_EQ(normalize(R"x({"type":"Replace","pattern":{"Regex":"(l)(e)"},"content":"$1"})x", "le"),
            "$1");
  EXPECT_EQ(origins(R"({"type":"Replace","pattern":{"String":"bc"},"content":"xyz"})", "abcd"),
            (Ranges{{0, 1}, {2, 3}, {2, 3}, {2, 3}, {3, 4}}));
}

TEST(NormalizerTest, Bert) {
  const char* all = R"({"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,)"
                    R"("strip_accents":null,"lowercase":true})";
  EXPECT_EQ(normalize(all, "\u00c9t\u00c9\x01\t\u4e2dX\u00a0"), "ete  \u4e2d x ");
  const char* cased = R"({"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":false,)"
                      R"("strip_accents":null,"lowercase":false})";
  EXPECT_EQ(normalize(cased, "\u00c9\u4e2d\ufffd\u200b"), "\u00c9\u4e2d");
  EXPECT_EQ(normalize(cased, "\u0378"), "\u0378");  // not an assigned character
  EXPECT_EQ(origins(all, "a\u4e2d"), (Ranges{{0, 1}, {1, 4}, {1, 4}, {1, 4}}));
}

TEST(NormalizerTest, SequencesNest) {
  EXPECT_EQ(normalize(R"({"type":"Sequence","normalizers":[{"type":"NFD"},{"type":"Sequence",)"
                      R"("normalizers":[{"type":"StripAccents"},{"type":"Lowercase"}]}]})",
                      "\u00c9A"),
            "ea");
  EXPECT_EQ(normalize(R"({"type":"Sequence","normalizers":[]})", "A"), "A");
  EXPECT_EQ(make_normalizer(Json()), nullptr);
}

TEST(NormalizerTest, TheInputsBeginIsKeptInMind) {
  Text text({.bytes = " ab"});
  make(R"({"type":"Strip"})")->normalize(text);
  EXPECT_FALSE(text.view().begins_input());
  Text longer({.bytes = "ab"});
  make(R"({"type":"Prepend","prepend":"\u2581"})")->normalize(longer);
  EXPECT_TRUE(longer.view().begins_input());
  EXPECT_TRUE(longer.view().part(3, 5).begins_input());
  EXPECT_FALSE(longer.view().part(4, 5).begins_input());
}

TEST(NormalizerTest, RefusesByName) {
  const auto message = [](std::string_view settings) -> std::string {
    try {
      make(settings);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message(R"({"type":"Upper"})").find("'Upper'"), std::string::npos);
  EXPECT_NE(message(R"({"type":"Strip","strip_left":3})").find("strip_left"), std::string::npos);
  EXPECT_NE(message(R"({"type":"Prepend"})").find("prepend"), std::string::npos);
  EXPECT_NE(message(R"({"type":"Replace","pattern":"a","content":"b"})").find("pattern"),
            std::string::npos);
  EXPECT_NE(message(R"({"type":"Replace","pattern":{"Regex":"("},"content":"b"})").find('('),
            std::string::npos);
  EXPECT_NE(message(R"({"type":"Precompiled","precompiled_charsmap":null})").find("charsmap"),
            std::string::npos);
}

TEST(GraphemeTest, Clusters) {
  const auto first = [](std::string_view text) { return text.substr(0, grapheme_end(text, 0)); };
  EXPECT_EQ(first("\r\nx"), "\r\n");
  EXPECT_EQ(first("\n\u0301"), "\n");
  EXPECT_EQ(first("e\u0323\u0301x"), "e\u0323\u0301");
  EXPECT_EQ(first("\u1100\u1161\u11a8\u1100"), "\u1100\u1161\u11a8");
  EXPECT_EQ(first("\U0001f1e9\U0001f1ea\U0001f1e9"), "\U0001f1e9\U0001f1ea");
  EXPECT_EQ(first("\U0001f468\u200d\U0001f469x"), "\U0001f468\u200d\U0001f469");
  EXPECT_EQ(first("a\u200d\U0001f469"), "a\u200d");
  EXPECT_EQ(first("ab"), "a");
}

std::string base64(std::string_view bytes) {
  const char* alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k)
      bits = bits << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0);
    for (size_t k = 0; k < 4; ++k)
      out += i + k <= bytes.size() ? alphabet[bits >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

std::string map_of(const std::vector<uint32_t>& units, std::string_view replacements) {
  std::string blob;
  const auto put = [&](uint32_t value) {
    for (int k = 0; k < 4; ++k) blob.push_back(static_cast<char>(value >> 8 * k));
  };
  put(static_cast<uint32_t>(units.size() * 4));
  for (const uint32_t unit : units) put(unit);
  return base64(blob.append(replacements));
}

// A trie with the single word 'a', whose replacement is at `place`. The root leads to node 1 ^ 'a',
// which has one leaf.
std::vector<uint32_t> trie(uint32_t place) {
  std::vector<uint32_t> units(128, 0);
  units[0] = 1 << 10;
  units[1 ^ 'a'] = 'a' | 1 << 8 | 2 << 10;
  units[1 ^ 'a' ^ 2] = 0x80000000u | place;
  return units;
}

TEST(CharacterMapTest, FindsAndReplaces) {
  const std::string map = map_of(trie(2), std::string_view("x\0yz\0", 5));
  EXPECT_EQ(CharacterMap(map).find_shortest("ab"), "yz");
  EXPECT_EQ(CharacterMap(map).find_shortest("b"), std::nullopt);
  EXPECT_EQ(CharacterMap(map).find_shortest(""), std::nullopt);
  const std::string settings = R"({"type":"Precompiled","precompiled_charsmap":")" + map + "\"}";
  EXPECT_EQ(normalize(settings, "bab"), "byzb");
  EXPECT_EQ(origins(settings, "bab"), (Ranges{{0, 1}, {1, 2}, {1, 2}, {2, 3}}));
  EXPECT_EQ(normalize(settings, "a\u0301b"), "yzb");  // the shortest prefix replaces the cluster
}

TEST(CharacterMapTest, OriginsOfWhatIsDropped) {
  const std::string settings = R"({"type":"Precompiled","precompiled_charsmap":")" +
                               map_of(trie(0), std::string_view("\0", 1)) + "\"}";
  EXPECT_EQ(origins(settings, "bac"), (Ranges{{0, 1}, {2, 3}}));
  EXPECT_EQ(origins(settings, "abc"), (Ranges{{0, 1}, {1, 2}}));  // as in Hugging Face
}

TEST(CharacterMapTest, HostileMapsAreRefused) {
  EXPECT_THROW(CharacterMap("abc"), Error);
  EXPECT_THROW(CharacterMap("ab*d"), Error);
  EXPECT_THROW(CharacterMap(""), Error);
  EXPECT_THROW(CharacterMap(base64("\x10\x00\x00\x00zzzz")), Error);
  EXPECT_THROW(CharacterMap(base64(std::string_view("\x00\x00\x00\x00zzzz", 8))), Error);
  EXPECT_THROW(CharacterMap(map_of({0}, "\xff")), Error);
  std::vector<uint32_t> far(128, 0);
  far[0] = 0x7ffffu << 10;
  EXPECT_THROW(CharacterMap(map_of(far, "x")).find_shortest("a"), Error);
  std::vector<uint32_t> leaf(128, 0);
  leaf[0] = 1 << 10;
  leaf[1 ^ 'a'] = 'a' | 1 << 8 | 0x3ffu << 10;
  EXPECT_THROW(CharacterMap(map_of(leaf, "x")).find_shortest("a"), Error);
  EXPECT_THROW(CharacterMap(map_of(trie(77), "x")).find_shortest("a"), Error);
  EXPECT_THROW(CharacterMap(map_of(trie(1), "\u00e9")).find_shortest("a"), Error);
}

}  // namespace
}  // namespace megatron::tokenizers
