// A text as it grows: complete characters up to its end, and its tokens.
#include "server/choice.h"

#include <gtest/gtest.h>

#include "server/logprobs.h"
#include "tokenizers/plain_codecs.h"

namespace megatron::server {
namespace {

const TextModel& bytes() {
  static const TextModel model(
      {.name = "m",
       .tokenizer = tokenizers::Tokenizer(tokenizers::make_byte_codec(300)),
       .context = 100});
  return model;
}

inference::RequestUpdate update(std::string_view text,
                                std::optional<inference::Finish> finish = {}) {
  inference::RequestUpdate update;
  for (const char c : text)
    update.tokens.push_back({.draw = {static_cast<unsigned char>(c), -1}, .alternatives = {}});
  update.finish = finish;
  return update;
}

std::vector<size_t> begins(const Piece& piece) {
  std::vector<size_t> all;
  for (const TextToken& token : piece.tokens) all.push_back(token.begin);
  return all;
}

TEST(Choice, GivesOutWholeCharacters) {
  Choice choice(bytes(), {}, {});
  choice.take(update("a\xc3"));
  Piece piece = choice.take_piece();
  EXPECT_EQ(piece.text, "a");
  EXPECT_EQ(begins(piece), (std::vector<size_t>{0}));
  choice.take(update("\xa9"));
  piece = choice.take_piece();
  EXPECT_EQ(piece.text, "é");
  EXPECT_EQ(begins(piece), (std::vector<size_t>{1, 1}));
  choice.take(update("\xe2\x82", inference::Finish::length));
  piece = choice.take_piece();
  EXPECT_EQ(piece.text, "\xef\xbf\xbd");
  EXPECT_EQ(piece.tokens.size(), 2u);
  EXPECT_EQ(choice.finish_reason(), "length");
  EXPECT_EQ(choice.generated_tokens(), 5);
}

TEST(Choice, ATextBeginsWithTheRestOfTheLastCharacter) {
  const std::vector<int32_t> prompt = {'x', 0xc3};
  Choice choice(bytes(), prompt, {});
  choice.take(update("\xa9!"));
  EXPECT_EQ(choice.take_piece().text, "é!");
}

TEST(Choice, StopStrings) {
  Choice choice(bytes(), {}, {.stops = {"END"}});
  EXPECT_FALSE(choice.take(update("ab E")));
  Piece piece = choice.take_piece();
  EXPECT_EQ(piece.text, "ab ");
  EXPECT_EQ(piece.tokens.size(), 3u);
  EXPECT_TRUE(choice.take(update("ND and more")));
  piece = choice.take_piece();
  EXPECT_EQ(piece.text, "");
  EXPECT_TRUE(piece.tokens.empty());
  EXPECT_TRUE(choice.finished());
  EXPECT_EQ(choice.finish_reason(), "stop");
  EXPECT_EQ(choice.generated_tokens(), 6);
  EXPECT_FALSE(choice.take(update("late")));
  EXPECT_EQ(choice.take_piece().text, "");

  Choice last(bytes(), {}, {.stops = {"b"}});
  EXPECT_FALSE(last.take(update("ab", inference::Finish::length))) << "the engine has ended it";
  EXPECT_EQ(last.finish_reason(), "stop");
  EXPECT_EQ(last.take_piece().text, "a");
}

TEST(Choice, StopStringsDoNotCountBeforeMinTokens) {
  Choice choice(bytes(), {}, {.stops = {"a"}, .min_tokens = 4});
  EXPECT_FALSE(choice.take(update("aba")));
  EXPECT_TRUE(choice.take(update("ca")));
  EXPECT_EQ(choice.take_piece().text, "abac");
}

TEST(Choice, EndTokensAreNoText) {
  Choice choice(bytes(), {}, {.end_tokens = {'!'}});
  choice.take(update("ab!", inference::Finish::end_token));
  const Piece piece = choice.take_piece();
  EXPECT_EQ(piece.text, "ab");
  EXPECT_EQ(piece.tokens.size(), 2u);
  EXPECT_EQ(choice.finish_reason(), "stop");
  EXPECT_EQ(choice.generated_tokens(), 3);
}

TEST(Choice, AnEndTokenMayBeGiven) {
  Choice choice(bytes(), {}, {.end_tokens = {'!'}, .gives_end_token = true});
  choice.take(update("ab!", inference::Finish::end_token));
  const Piece piece = choice.take_piece();
  EXPECT_EQ(piece.text, "ab");
  ASSERT_EQ(piece.tokens.size(), 3u);
  EXPECT_EQ(piece.tokens[2].token.draw.token, '!');
  EXPECT_EQ(piece.tokens[2].begin, 2u);
}

TEST(Logprobs, OffsetsAreCharacters) {
  CompletionLogprobs logprobs(bytes());
  const std::vector<int32_t> prompt = {0xc3, 0xa9};
  const std::vector<double> values = {-2};
  logprobs.add_prompt("é", prompt, values);
  Choice choice(bytes(), prompt, {});
  choice.take(update("ü\x80z", inference::Finish::length));
  logprobs.add(choice.take_piece());
  const Json json = logprobs.take();
  EXPECT_EQ(json["text_offset"], Json(Json::Array{0, 0, 1, 1, 2, 3}));
  EXPECT_EQ(json["tokens"], Json(Json::Array{"bytes:\\xc3", "bytes:\\xa9", "bytes:\\xc3",
                                             "bytes:\\xbc", "bytes:\\x80", "z"}));
  EXPECT_EQ(json["token_logprobs"], Json(Json::Array{Json(), -2.0, -1.0, -1.0, -1.0, -1.0}));
  EXPECT_TRUE(json["top_logprobs"].as_array()[1].is_null());
  EXPECT_EQ(logprobs.take()["tokens"], Json(Json::Array{}));
  EXPECT_EQ(log_probability(-HUGE_VAL), Json(-9999.0));
}

}  // namespace
}  // namespace megatron::server
