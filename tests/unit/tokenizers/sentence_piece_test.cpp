#include "tokenizers/sentence_piece/sentence_piece.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "base/error.h"
#include "tokenizers/sentence_piece/sentence_piece_map.h"
#include "tokenizers/sentence_piece/sentence_piece_model.h"

namespace megatron::tokenizers {
namespace {

// Encodes a protocol buffer, field by field.
std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}
std::string field(int number, const std::string& content) {
  return varint(static_cast<uint64_t>(number) << 3 | 2) + varint(content.size()) + content;
}
std::string field(int number, int64_t value) {
  return varint(static_cast<uint64_t>(number) << 3) + varint(static_cast<uint64_t>(value));
}
std::string score(float value) {
  std::string bytes(4, '\0');
  std::memcpy(bytes.data(), &value, 4);
  return varint(2 << 3 | 5) + bytes;
}
std::string piece(const std::string& text, float value = 0, int type = 1) {
  return field(1, field(1, text) + score(value) + (type == 1 ? "" : field(3, type)));
}

const std::string kPlain = field(3, field(3, 0) + field(4, 0));  // no dummy prefix, no trimming
const std::string kBpe = field(2, field(3, 2));
const std::string kSpecial = piece("<unk>", 0, 2) + piece("<s>", 0, 3) + piece("</s>", 0, 3);

std::vector<int32_t> ids(const Codec& codec, std::string_view text, bool special = false) {
  std::vector<int32_t> ids;
  codec.encode(text, {.add_special_tokens = special}, ids, nullptr);
  return ids;
}
std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}
std::string refused(const std::string& model) {
  return error_of([&] { make_sentence_piece(model, {}); });
}

using Ids = std::vector<int32_t>;

TEST(SentencePiece, MergesByScore) {
  const std::string model = kSpecial + piece("a") + piece("b") + piece("c") + piece("ab", -2) +
                            piece("bc", -1) + kBpe + kPlain;
  const auto codec = make_sentence_piece(model, {});
  EXPECT_EQ(ids(*codec, "abc"), (Ids{3, 7}));
  EXPECT_EQ(ids(*codec, "abab"), (Ids{6, 6}));
  EXPECT_EQ(codec->decode(Ids{3, 7}, false), "abc");
}

TEST(SentencePiece, FindsTheBestPath) {
  const std::string model = kSpecial + piece("a", -1) + piece("b", -1) + piece("ab", -3) +
                            piece("aba", -1.5f) + field(2, field(3, 1)) + kPlain;
  const auto codec = make_sentence_piece(model, {});
  EXPECT_EQ(ids(*codec, "ab"), (Ids{3, 4}));
  EXPECT_EQ(ids(*codec, "abab"), (Ids{6, 4}));
}

TEST(SentencePiece, KnowsSpecialPieces) {
  const auto codec = make_sentence_piece(kSpecial + piece("a") + kBpe + kPlain, {true, true});
  EXPECT_EQ(codec->role("bos"), 1);
  EXPECT_EQ(codec->role("eos"), 2);
  EXPECT_EQ(codec->role("unk"), 0);
  EXPECT_EQ(codec->role("pad"), std::nullopt);
  EXPECT_TRUE(codec->is_special(1));
  EXPECT_FALSE(codec->is_special(0));
  EXPECT_EQ(ids(*codec, "aza", true), (Ids{1, 3, 0, 3, 2}));
  EXPECT_EQ(codec->decode(Ids{1, 3, 0, 3, 2, 99, -1}, false), "a \xe2\x81\x87 a");
  EXPECT_EQ(codec->find("a"), 3);
  EXPECT_EQ(codec->find("z"), std::nullopt);
  EXPECT_EQ(codec->find("<unk>"), 0);
  EXPECT_EQ(codec->token(1), "<s>");
}

TEST(SentencePiece, ReadsWhatItWrites) {
  const auto codec = make_sentence_piece(kSpecial + piece("a") + kBpe + kPlain, {});
  const auto files = codec->files();
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(files[0].name, "tokenizer.model");
  EXPECT_EQ(ids(*make_sentence_piece(files[0].content, {}), "aa"), (Ids{3, 3}));
}

TEST(SentencePiece, RefusesBadPieces) {
  EXPECT_NE(refused("").find("there are no pieces"), std::string::npos);
  EXPECT_NE(refused(kSpecial + piece("")).find("a piece has 0 bytes"), std::string::npos);
  EXPECT_NE(refused(kSpecial + piece(std::string(9000, 'x'))).find("a piece has 9000 bytes"),
            std::string::npos);
  EXPECT_NE(refused(kSpecial + piece(std::string("a\0b", 3))).find("zero byte"), std::string::npos);
  EXPECT_NE(refused(kSpecial + piece("\xff")).find("not valid UTF-8"), std::string::npos);
  EXPECT_NE(refused(kSpecial + piece("a") + piece("a")).find("the piece 'a' occurs twice"),
            std::string::npos);
  EXPECT_NE(refused(kSpecial + piece("a", NAN)).find("has the score nan"), std::string::npos);
  EXPECT_NE(refused(kSpecial + piece("a", 0, 9)).find("has type 9; types are 1 to 6"),
            std::string::npos);
  EXPECT_NE(refused(piece("a") + kBpe).find("unk is not defined"), std::string::npos);
  EXPECT_NE(refused(kSpecial + piece("<0x41>", 0, 6) + kBpe).find("byte_fallback"),
            std::string::npos);
}

TEST(SentencePiece, RefusesBadMessages) {
  const std::string model = kSpecial + piece("a") + kBpe + kPlain;
  for (size_t size = 1; size < model.size(); ++size) {
    try {
      make_sentence_piece(model.substr(0, size), {});
    } catch (const Error&) {
    }
  }
  EXPECT_NE(refused(model.substr(0, kSpecial.size() - 1))
                .find("longer than the message that "
                      "contains it"),
            std::string::npos);
  EXPECT_NE(refused(kSpecial + std::string(11, '\xff')).find("more than 64 bits"),
            std::string::npos);
  EXPECT_NE(refused(kSpecial + field(1, 7)).find("field 1 has wire type 0 instead of 2"),
            std::string::npos);
  EXPECT_NE(refused(kSpecial + field(2, field(3, 3))).find("the model's type is 3 (words)"),
            std::string::npos);
}

// The library's stack has room for 64.
TEST(SentencePiece, RefusesDeeplyNestedSymbols) {
  const auto model = [](size_t count) {
    std::string pieces = kSpecial;
    for (size_t i = 1; i <= count; ++i) pieces += piece(std::string(i, 'a'), 0, 4);
    return pieces + kBpe + kPlain;
  };
  EXPECT_EQ(ids(*make_sentence_piece(model(64), {}), std::string(65, 'a')), (Ids{66, 3}));
  EXPECT_NE(refused(model(65)).find("more than 64 user-defined pieces"), std::string::npos);
}

std::string normalized_by(const std::string& map) {
  return kSpecial + piece("a") + kBpe + field(3, field(2, map) + field(3, 0) + field(4, 0));
}

// A map with one key, "A" to "a", which `change` may damage.
std::string map_of(const std::function<void(std::vector<uint32_t>&, std::string&)>& change) {
  std::vector<uint32_t> units(512, 1u << 31);  // empty values
  std::string replacements("\0a\0", 3);
  // The root's children start at 256, and those of A at 256 ^ 'A' ^ 1 << 8, where its value comes
  // first.
  units[0] = 256u << 10;
  units[256 ^ 'A'] = 'A' | 1u << 8 | ((256u ^ 'A') ^ 260u) << 10;
  units[260] = 1u << 31 | 1;
  change(units, replacements);
  const auto size = static_cast<uint32_t>(units.size() * 4);
  std::string map(4 + size, '\0');
  std::memcpy(map.data(), &size, 4);
  std::memcpy(map.data() + 4, units.data(), size);
  return map + replacements;
}

TEST(SentencePiece, NormalizesByTheMap) {
  const auto codec = make_sentence_piece(normalized_by(map_of([](auto&, auto&) {})), {});
  EXPECT_EQ(ids(*codec, "AaA"), (Ids{3, 3, 3}));
}

TEST(SentencePiece, RefusesMapsThatPointOutside) {
  const auto spoilt = [](const std::function<void(std::vector<uint32_t>&, std::string&)>& change) {
    return refused(normalized_by(map_of(change)));
  };
  using Units = std::vector<uint32_t>;
  EXPECT_NE(spoilt([](Units& u, auto&) { u[0] = 4096u << 10; }).find("points at unit"),
            std::string::npos);
  EXPECT_NE(spoilt([](Units& u, auto&) { u[260] = 1u << 31 | 77; }).find("points at byte 77"),
            std::string::npos);
  EXPECT_NE(spoilt([](Units& u, auto&) { u[256 ^ 'A'] = 'A' | 'A' << 10; }).find("has a cycle"),
            std::string::npos);
  EXPECT_NE(spoilt([](auto&, std::string& r) { r.back() = 'x'; }).find("is not terminated"),
            std::string::npos);
  EXPECT_NE(spoilt([](auto&, std::string& r) { r[1] = '\xff'; }).find("not valid UTF-8"),
            std::string::npos);
  EXPECT_NE(spoilt([](auto&, std::string& r) {
              r = std::string(1, '\0') + std::string(2000, 'x') + std::string(1, '\0');
            }).find("a replacement of 2000 bytes"),
            std::string::npos);
  for (const size_t size : {1u, 4u, 5u, 1000u, 2051u, 2052u}) {
    const std::string map = map_of([](auto&, auto&) {}).substr(0, size);
    EXPECT_NE(refused(normalized_by(map)).find("the normalization map"), std::string::npos) << size;
  }
}

TEST(SentencePiece, RefusesOffsets) {
  const auto codec = make_sentence_piece(kSpecial + piece("a") + kBpe + kPlain, {});
  std::vector<int32_t> ids;
  std::vector<Range> offsets;
  EXPECT_NE(error_of([&] { codec->encode("a", {}, ids, &offsets); }).find("offsets"),
            std::string::npos);
}

}  // namespace
}  // namespace megatron::tokenizers
