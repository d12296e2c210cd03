// Pairs of completions, and single ones with labels, as samples.
#include "corpus/chat/preference_dataset.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "corpus/chat/chat_reader.h"
#include "corpus/vocabulary.h"

namespace megatron::corpus {
namespace {

template <class F>
std::string failure_of(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

constexpr const char* kTemplate =
    "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}";

// Files, with a tokenizer whose tokens are bytes, and a chat template.
class Preferences : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              ("preferences_" + std::to_string(::getpid()) + "_" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
    template_.set_template(kTemplate, "test");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::shared_ptr<const PreferenceStore> read(const std::string& text,
                                              const PreferenceUse& use = {}, int64_t capacity = 100,
                                              bool keep_start = true) const {
    std::ofstream(folder_ / "data.jsonl") << text;
    ThreadPool pool(2);
    return std::make_shared<const PreferenceStore>(read_preferences(
        {(folder_ / "data.jsonl").string()}, tokens_,
        {.capacity = capacity, .keep_start = keep_start, .use = use}, pool, "reading"));
  }
  // "prompt|completion" of both documents of an example; the end-of-sequence token is "$".
  std::vector<std::string> texts(const PreferenceStore& store, int64_t example = 0) const {
    std::vector<std::string> all;
    for (const PreferenceDocument& document : store.pair(example)) {
      const auto part = [&](int64_t begin, int64_t length) {
        std::string text;
        for (int64_t i = begin; i < begin + length; ++i) {
          const int32_t id = store.ids[static_cast<size_t>(i)];
          text += tokenizer_->eos() == id ? '$' : static_cast<char>(id);
        }
        return text;
      };
      all.push_back(part(document.prompt_begin, document.prompt_length) + "|" +
                    part(document.completion_begin, document.completion_length));
    }
    return all;
  }
  std::vector<std::string> texts_of(const std::string& record) const {
    return texts(*read(record));
  }
  void refused(const std::string& text, const std::string& part,
               const PreferenceUse& use = {}) const {
    const std::string error = failure_of([&] { read(text, use); });
    EXPECT_NE(error.find("data.jsonl:1: "), std::string::npos) << error;
    EXPECT_NE(error.find(part), std::string::npos) << part << " in " << error;
  }

  std::filesystem::path folder_;
  const std::shared_ptr<const tokenizers::Tokenizer> tokenizer_ =
      open_vocabulary({.tokenizer_type = "ByteTokenizer"}, 256).tokenizer;
  tokenizers::ChatTemplate template_;
  const ChatTokenizer tokens_{*tokenizer_, template_};
  const std::string end_ = tokenizer_->eos() ? "$" : "";
};

using Texts = std::vector<std::string>;

TEST_F(Preferences, PairsHaveManyShapes) {
  EXPECT_EQ(texts_of(R"({"prompt": "ab ", "chosen": "c", "rejected": "de"})"),
            (Texts{"ab |c" + end_, "ab |de" + end_}));
  // The common beginning, but for a space before the difference; something is left of both.
  EXPECT_EQ(texts_of(R"({"chosen": "say yes", "rejected": "say no"})"),
            (Texts{"say| yes" + end_, "say| no" + end_}));
  EXPECT_EQ(texts_of(R"({"chosen": "ab", "rejected": "abc"})"),
            (Texts{"a|b" + end_, "a|bc" + end_}));
  // Two characters with the same first byte are not cut apart.
  EXPECT_EQ(texts_of("{\"chosen\": \"x\\u00e4\", \"rejected\": \"x\\u00f6\"}"),
            (Texts{"x|\u00e4" + end_, "x|\u00f6" + end_}));
  const Texts chat = {"<u>q<a>|yes", "<u>q<a>|no"};
  const std::string user = R"({"role": "user", "content": "q"})",
                    yes = R"({"role": "assistant", "content": "yes"})",
                    no = R"({"role": "assistant", "content": "no"})";
  EXPECT_EQ(texts_of(R"({"prompt": [)" + user + R"(], "chosen": [)" + yes + R"(], "rejected": [)" +
                     no + "]}"),
            chat);
  EXPECT_EQ(texts_of(R"({"chosen": [)" + user + "," + yes + R"(], "rejected": [)" + user + "," +
                     no + "]}"),
            chat);
  EXPECT_EQ(texts_of(R"({"messages": [)" + user + "," + yes + R"(], "rejected_response": "no"})"),
            chat);
  EXPECT_EQ(texts_of(R"({"messages": [)" + user + "," + yes + R"(], "rejected_messages": [)" +
                     user + "," + no + "]}"),
            chat);
  EXPECT_EQ(texts_of(R"({"conversations": [{"from": "human", "value": "q"}, )"
                     R"({"from": "gpt", "value": "yes"}], "rejected_response": "no"})"),
            chat);
}

TEST_F(Preferences, APairIsTwoDocumentsOfARow) {
  const auto store = read(R"({"prompt": "ab", "chosen": "c", "rejected": "de", "margin": 2})");
  EXPECT_EQ(store->margins, 1);
  const auto e = static_cast<int64_t>(end_.size());
  ASSERT_EQ(store->length(0), 7 + 2 * e);
  const PreferenceDataset set(store, {0}, Packing::bfd, 12, 0, 1, std::nullopt);
  data::Sample sample;
  set.read(0, sample);
  const size_t second = static_cast<size_t>(3 + e);
  EXPECT_EQ(sample.tokens[second], 'a');
  EXPECT_EQ(sample.segment_begin[second + 1], static_cast<int32_t>(second));
  EXPECT_EQ(sample.position_ids[second + 1], 1);
  for (size_t i = 0; i < 12; ++i) {
    const bool chosen = i >= 1 && i + 1 < second,
               rejected = i >= second + 1 && i + 1 < static_cast<size_t>(store->length(0));
    EXPECT_EQ(sample.targets[i], static_cast<double>(chosen     ? PreferenceRole::chosen
                                                     : rejected ? PreferenceRole::rejected
                                                                : PreferenceRole::none))
        << i;
    EXPECT_EQ(sample.loss_mask[i], chosen || rejected ? 1 : 0) << i;
    if (chosen || rejected) {
      EXPECT_EQ(sample.labels[i], sample.tokens[i + 1]);
    }
  }
  set.read_filler(sample);
  EXPECT_EQ(sample.loss_mask, std::vector<float>(12, 0));
}

// ORPO's loss of chosen texts reads their prompts; the first token of a text is no label.
TEST_F(Preferences, PromptsOfChosenCompletionsMayCount) {
  const auto store = read(R"({"prompt": "abc", "chosen": "d", "rejected": "e"})",
                          {.prompts = true, .unpaired = false, .mismatched = false});
  const PreferenceDataset set(store, {0}, Packing::bfd, 12, 0, 1, std::nullopt);
  data::Sample sample;
  set.read(0, sample);
  using enum PreferenceRole;
  for (const auto& [at, role] : {std::pair{0, chosen_prompt}, {1, chosen_prompt}, {2, chosen}}) {
    EXPECT_EQ(sample.targets[static_cast<size_t>(at)], static_cast<double>(role));
    EXPECT_EQ(sample.loss_mask[static_cast<size_t>(at)], 1);
  }
  const size_t second = 4 + end_.size();
  EXPECT_EQ(sample.loss_mask[second] + sample.loss_mask[second + 1], 0);
  EXPECT_EQ(sample.targets[second + 2], static_cast<double>(rejected));
}

TEST_F(Preferences, ACompletionMayBringAMismatchedOne) {
  const PreferenceUse kto{.prompts = false, .unpaired = true, .mismatched = true};
  const std::string text = R"({"prompt": "a", "completion": "1", "label": true})"
                           "\n"
                           R"({"prompt": "a", "completion": "2", "label": false})"
                           "\n"
                           R"({"prompt": "b", "completion": "3", "label": 1})";
  const auto store = read(text, kto);
  ASSERT_EQ(store->size(), 3);
  EXPECT_EQ(texts(*store, 0), (Texts{"a|3" + end_, "a|1" + end_}));
  EXPECT_EQ(texts(*store, 1), (Texts{"a|3" + end_, "a|2" + end_}));
  EXPECT_EQ(texts(*store, 2), (Texts{"b|2" + end_, "b|3" + end_}));
  EXPECT_EQ(store->pair(1)[0].role, PreferenceRole::mismatched);
  EXPECT_EQ(store->pair(1)[1].role, PreferenceRole::rejected);
  EXPECT_EQ(store->pair(2)[1].role, PreferenceRole::chosen);
  // A pair is two completions with labels. All have one prompt: the one before.
  const auto pairs = read(R"({"prompt": "a", "chosen": "1", "rejected": "2"})", kto);
  ASSERT_EQ(pairs->size(), 2);
  EXPECT_EQ(texts(*pairs, 0), (Texts{"a|2" + end_, "a|1" + end_}));
  EXPECT_EQ(pairs->pair(1)[1].role, PreferenceRole::rejected);
  // Without the KL term, one document each.
  const auto single = read(text, {.prompts = false, .unpaired = true, .mismatched = false});
  EXPECT_EQ(texts(*single, 1), (Texts{"|", "a|2" + end_}));
  EXPECT_EQ(single->length(1), single->pair(1)[1].length());
  const std::string chat = R"({"messages": [{"role": "user", "content": "q"}, )"
                           R"({"role": "assistant", "content": "yes"}], "label": false})";
  EXPECT_EQ(texts(*read(chat + "\n" + chat, kto), 1)[1], "<u>q<a>|yes");
}

TEST_F(Preferences, LongExamplesAreCut) {
  const std::string pair = R"({"prompt": "0123", "chosen": "456789", "rejected": "x"})";
  const auto start = read(pair, {}, 12);
  EXPECT_EQ(start->length(0), 12);
  EXPECT_EQ(start->cut, 1);
  EXPECT_EQ(texts(*start)[0].substr(0, 7), "0123|45");
  EXPECT_EQ(texts(*start)[1], "0123|x" + end_);
  const auto end = read(pair, {}, 12, false);
  EXPECT_TRUE(texts(*end)[0].ends_with("789" + end_)) << texts(*end)[0];
  EXPECT_EQ(end->length(0), 12);
  for (int64_t capacity = 4; capacity < 30; ++capacity) {
    for (const bool keep_start : {true, false}) {
      const auto store = read(pair + "\n" + R"({"prompt": "0", "chosen": "1", "rejected": "2"})",
                              {}, capacity, keep_start);
      for (int64_t i = 0; i < store->size(); ++i) EXPECT_LE(store->length(i), capacity);
      const auto kto =
          read(R"({"prompt": "0123456", "completion": "7", "label": true})"
               "\n"
               R"({"prompt": "0", "completion": "123456789", "label": true})"
               "\n"
               R"({"prompt": "0", "completion": "1", "label": false})",
               {.prompts = false, .unpaired = true, .mismatched = true}, 2 * capacity, keep_start);
      for (int64_t i = 0; i < kto->size(); ++i) {
        EXPECT_LE(kto->length(i), 2 * capacity);
        for (const PreferenceDocument& document : kto->pair(i))
          EXPECT_GE(document.completion_length, document.prompt_length == 0 ? 2 : 1);
      }
    }
  }
  // Equal once they are cut, or nothing left of a completion.
  const std::string kept = R"({"prompt": "0", "chosen": "1", "rejected": "2"})";
  EXPECT_EQ(read(kept + "\n" + R"({"prompt": "01234567", "chosen": "8", "rejected": "9"})", {}, 8)
                ->dropped,
            1);
  EXPECT_NE(failure_of([&] {
              read(R"({"prompt": "01234567", "chosen": "8", "rejected": "9"})", {}, 8);
            }).find("--chat-truncation"),
            std::string::npos);
}

TEST_F(Preferences, BadRecordsAreNamed) {
  refused(R"({"chosen": "a"})", "lacks 'rejected'");
  refused(R"({"text": "a"})", "has none of them");
  refused(R"({"prompt": "p", "chosen": "a", "rejected": "a"})", "have the same tokens");
  refused(R"({"prompt": "p", "chosen": "", "rejected": "a"})", "the chosen completion is empty");
  refused(R"({"prompt": "p", "chosen": "a", "rejected": ""})", "the rejected completion is empty");
  refused(R"({"prompt": "p", "chosen": "a", "rejected": 5})", "must all be texts");
  refused(R"({"prompt": "p", "chosen": "a", "rejected": "b", "margin": "c"})", "'margin' is \"c\"");
  refused(R"({"chosen": [{"role": "assistant", "content": "a"}], )"
          R"("rejected": [{"role": "assistant", "content": "b"}]})",
          "no beginning in common");
  refused(R"({"messages": [{"role": "user", "content": "a"}], "rejected_response": "b"})",
          "must be the assistant's");
  refused(R"({"messages": [{"role": "user", "content": "a"}, {"role": )"
          R"("assistant", "content": "b"}], "rejected_response": ""})",
          "'rejected_response' is empty");
  refused(R"({"prompt": "p", "completion": "a", "label": true})", "is no pair");
  const PreferenceUse kto{.prompts = false, .unpaired = true, .mismatched = true};
  refused(R"({"prompt": "p", "completion": "a", "label": "yes"})", "'label' is \"yes\"", kto);
  refused(R"({"prompt": "p", "completion": "", "label": true})", "the completion is empty", kto);
  refused(R"({"prompt": "", "completion": "a", "label": true})", "the prompt has no tokens", kto);
  EXPECT_NE(failure_of([&] {
              read(R"({"prompt": "p", "chosen": "a", "rejected": "b"})", {}, 3);
            }).find("--seq-length is 3"),
            std::string::npos);
}

}  // namespace
}  // namespace megatron::corpus
