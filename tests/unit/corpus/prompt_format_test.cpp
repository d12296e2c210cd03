// Rows of Megatron-LM's --sft against tokens worked out by hand.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "corpus/chat/chat_dataset.h"

namespace megatron::corpus {
namespace {

using Ids = std::vector<int64_t>;
using Mask = std::vector<float>;

// Words, line ends and spaces are tokens.
constexpr const char* kWords = R"({
  "added_tokens": [
    {"id": 10, "content": "<SPECIAL_10>", "single_word": false, "lstrip": false, "rstrip": false,
     "normalized": false, "special": true},
    {"id": 11, "content": "<SPECIAL_11>", "single_word": false, "lstrip": false, "rstrip": false,
     "normalized": false, "special": true},
    {"id": 12, "content": "<SPECIAL_12>", "single_word": false, "lstrip": false, "rstrip": false,
     "normalized": false, "special": true}],
  "normalizer": null, "decoder": null, "post_processor": null,
  "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\n| "}, "behavior": "Isolated",
                    "invert": false},
  "model": {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "\n": 1, " ": 2, "System": 3,
    "User": 4, "Assistant": 5, "be": 6, "brief": 7, "hi": 8, "yo": 9, "<SPECIAL_10>": 10,
    "<SPECIAL_11>": 11, "<SPECIAL_12>": 12, "ok": 13, "bye": 14}}})";

constexpr int32_t kFiller = 99;

class PromptFormats : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              ("formats_" + std::to_string(::getpid()) + "_" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
    write("tokenizer.json", kWords);
    tokenizer_.emplace(tokenizers::Tokenizer::load(folder_.string()));
    template_.set_template("{% for m in messages %}{{ m.content }}\n{% endfor %}", "test");
    tokens_.emplace(*tokenizer_, template_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
  }
  // A message as "user: text".
  static std::string record(const std::vector<std::string>& messages) {
    std::string text;
    for (const std::string& message : messages) {
      const size_t colon = message.find(':');
      text +=
          (text.empty() ? "" : ", ") + Json(Json::Object{{"role", message.substr(0, colon)},
                                                         {"content", message.substr(colon + 1)}})
                                           .dump();
    }
    return R"({"messages": [)" + text + "]}\n";
  }
  ChatStore read(const std::string& records, const std::string& format,
                 int64_t longest = 100) const {
    write("chats.jsonl", records);
    ThreadPool pool(2);
    return read_chats({(folder_ / "chats.jsonl").string()}, *tokens_,
                      {.longest = longest, .format = prompt_format(format)}, pool, "reading");
  }
  std::string error_of(const std::vector<std::string>& messages, const std::string& format) const {
    try {
      read(record(messages), format);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  }

  std::filesystem::path folder_;
  std::optional<tokenizers::Tokenizer> tokenizer_;
  tokenizers::ChatTemplate template_;
  std::optional<ChatTokenizer> tokens_;
};

const std::vector<std::string> kTwoConversations = {"system:be brief", "user: hi /think",
                                                    "assistant:yo",    "system:be",
                                                    "user:bye",        "assistant: ok\n"};

TEST_F(PromptFormats, NemotronNanoV2) {
  const ChatStore store = read(record(kTwoConversations), "nemotron-nano-v2");
  EXPECT_EQ(store.ids,
            (std::vector<int32_t>{10, 3,  1, 6, 2, 7, 1,  11, 4, 1,  8, 1,  11, 5, 1,  9, 1,  12,
                                  1,  10, 3, 1, 6, 1, 11, 4,  1, 14, 1, 11, 5,  1, 13, 1, 12, 1}));
  Mask expected(36);
  for (const size_t counted : {15, 16, 17, 18, 32, 33, 34, 35}) expected[counted] = 1;
  EXPECT_EQ(store.weights, expected);
  EXPECT_EQ(store.size(), 1);  // a record is a row
  EXPECT_EQ(store.inner_begins, std::vector<int64_t>{19});
  EXPECT_EQ(store.rule, AnswerRule::messages);
}

TEST_F(PromptFormats, NemotronHAligned) {
  const ChatStore store = read(record(kTwoConversations), "nemotron-h-aligned");
  EXPECT_EQ(store.ids,
            (std::vector<int32_t>{10, 3, 1,  6, 2, 7, 1, 11, 4, 1, 8,  2, 0,  1, 11, 5,  1,
                                  9,  1, 10, 3, 1, 6, 1, 11, 4, 1, 14, 1, 11, 5, 1,  13, 1}));
  Mask expected(34);
  for (const size_t counted : {17, 18, 32, 33}) expected[counted] = 1;
  EXPECT_EQ(store.weights, expected);
}

TEST_F(PromptFormats, IdentityIsTheContentsAlone) {
  const ChatStore store =
      read(record({"system:be brief", "user:\nhi", "assistant:\nyo"}), "identity");
  EXPECT_EQ(store.ids, (std::vector<int32_t>{6, 2, 7, 1, 8, 1, 9}));
  EXPECT_EQ(store.weights, (Mask{0, 0, 0, 0, 0, 1, 1}));
  // "brief" and "hi" would become one token.
  EXPECT_NE(error_of({"system:be brief", "user:hi", "assistant:\nyo"}, "identity")
                .find("other tokens of the whole conversation"),
            std::string::npos);
}

TEST_F(PromptFormats, DefaultIsTheTemplateWithLossOnEveryToken) {
  const ChatStore store = read(record(kTwoConversations), "default");
  EXPECT_EQ(store.ids,
            (std::vector<int32_t>{6, 2, 7, 1, 2, 8, 2, 0, 1, 9, 1, 6, 1, 14, 1, 2, 13, 1, 1}));
  Mask expected(19, 1);
  expected[0] = expected[11] = 0;  // a conversation's first token is no label
  EXPECT_EQ(store.weights, expected);
  EXPECT_EQ(store.rule, AnswerRule::everything);
}

TEST_F(PromptFormats, ConversationsOfARowAreApartAndRowsKeepTheirOrder) {
  const std::string text =
      record({"system:be", "user:hi", "assistant:yo", "system:be", "user:bye", "assistant:ok"}) +
      record({"user:hi", "assistant:ok"});
  const auto store = std::make_shared<const ChatStore>(read(text, "nemotron-h-aligned", 27));
  EXPECT_EQ(store->cut, 1);
  const ChatDataset set(store, {0, 1}, std::nullopt, 27, kFiller, std::nullopt, 5);
  data::Sample sample;
  set.read(0, sample);
  EXPECT_EQ(sample.tokens, (Ids{10, 3,  1, 6, 1, 11, 4,  1, 8, 1,  11, 5,  1, 9,
                                1,  10, 3, 1, 6, 1,  11, 4, 1, 14, 1,  11, 5}));
  EXPECT_EQ(sample.labels, (Ids{3, 1, 6, 1, 11, 4,  1, 8, 1,  11, 5,  1, 9, 1,
                                0, 3, 1, 6, 1,  11, 4, 1, 14, 1,  11, 5, 0}));
  Mask mask(27);
  mask[12] = mask[13] = 1;  // the second answer is cut off
  EXPECT_EQ(sample.loss_mask, mask);
  EXPECT_EQ(sample.position_ids, (Ids{0,  1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13,
                                      14, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9,  10, 11}));
  std::vector<int32_t> begins(15, 0);
  begins.resize(27, 15);
  EXPECT_EQ(sample.segment_begin, begins);
  const auto first_of = [&](int64_t k) {
    set.read(k, sample);
    return sample.tokens[0];
  };
  EXPECT_EQ((Ids{first_of(0), first_of(1), first_of(2), first_of(3), first_of(4)}),
            (Ids{10, 11, 10, 11, 10}));
  set.read(1, sample);
  EXPECT_EQ(sample.tokens[10], kFiller);
  EXPECT_EQ(sample.sources[9], 0);
  EXPECT_EQ(sample.sources[10], -1);
}

TEST_F(PromptFormats, BadConversationsAreRefused) {
  const auto refused = [&](const std::vector<std::string>& messages, const std::string& part,
                           const std::string& format = "nemotron-nano-v2") {
    const std::string error = error_of(messages, format);
    EXPECT_NE(error.find("chats.jsonl:1: "), std::string::npos) << error;
    EXPECT_NE(error.find(part), std::string::npos) << part << " in " << error;
  };
  refused({"user:hi", "assistant:yo", "assistant:ok"}, "follows one of the assistant");
  refused({"system:be", "assistant:ok"}, "follows one of the system");
  refused({"assistant:ok"}, "follows no other");
  refused({"user:hi", "assistant: \n"}, "is empty");
  try {
    tokens_->check(PromptFormat::nemotron_nano_v2);
    write("tokenizer.json", R"({"added_tokens": [], "normalizer": null, "pre_tokenizer": null,
        "decoder": null, "post_processor": null, "model": {"type": "WordLevel", "unk_token": "?",
        "vocab": {"?": 0, "<SPECIAL_10>": 1, "<SPECIAL_11>": 2}}})");
    const tokenizers::Tokenizer other = tokenizers::Tokenizer::load(folder_.string());
    const ChatTokenizer tokens(other, template_);
    tokens.check(PromptFormat::nemotron_h_aligned);
    tokens.check(PromptFormat::nemotron_nano_v2);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("<SPECIAL_12>"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace megatron::corpus
