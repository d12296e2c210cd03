// Questions and the windows of their contexts as samples.
#include "corpus/chat/answer_dataset.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "corpus/chat/best_answer.h"
#include "corpus/vocabulary.h"

namespace megatron::corpus {
namespace {

namespace fs = std::filesystem;

class Answers : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              ("answers_" + std::to_string(::getpid()) + "_" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
    // w0, ..., w9 have the ids 5 to 14.
    std::ofstream file(folder_ / "vocab.txt");
    file << "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
    for (int i = 0; i < 10; ++i) file << "w" << i << "\n";
    file << "##w\n";
    file.close();
    tokenizer_ =
        std::make_unique<tokenizers::Tokenizer>(tokenizers::Tokenizer::load(folder_ / "vocab.txt"));
  }
  void TearDown() override { fs::remove_all(folder_); }

  AnswerReading reading(int64_t capacity, int64_t overlap) const {
    models::ModelFacts facts;
    facts.token_types = 2;
    return answer_reading(facts, *tokenizer_, capacity, overlap);
  }
  std::vector<AnswerWindow> windows(const std::string& record, int64_t capacity,
                                    int64_t overlap) const {
    return answer_windows(question_of(Json::parse(record, "record"), "here:1"), *tokenizer_,
                          reading(capacity, overlap));
  }
  // The same tokens with RoBERTa's around them.
  void take_robertas_tokens() {
    Json file = Json::parse(tokenizer_->codec().files().at(0).content, "tokenizer.json");
    Json around = file["post_processor"];
    around.set("type", "RobertaProcessing");
    file.set("post_processor", std::move(around));
    std::ofstream(folder_ / "tokenizer.json") << file.dump();
    *tokenizer_ = tokenizers::Tokenizer::load(folder_ / "tokenizer.json");
  }
  std::string error_of(const std::string& record, int64_t capacity = 50) const {
    try {
      windows(record, capacity, 2);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  }

  fs::path folder_;
  std::unique_ptr<tokenizers::Tokenizer> tokenizer_;
};

// The answer is "w4 w5", tokens 4 and 5 of the context.
const std::string kRecord =
    R"({"question": "w9", "context": "w0 w1 w2 w3 w4 w5 w6 w7",
        "answers": {"text": ["w4 w5", "w1"], "answer_start": [12, 3]}})";

TEST_F(Answers, AContextIsInOneWindowIfItFits) {
  const std::vector<AnswerWindow> all = windows(kRecord, 12, 3);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].ids, (std::vector<int32_t>{2, 14, 3, 5, 6, 7, 8, 9, 10, 11, 12, 3}));
  EXPECT_EQ(all[0].context, 3);
  EXPECT_EQ(all[0].answer, (std::array<int32_t, 2>{7, 8}));
  EXPECT_EQ(all[0].offsets[4], (tokenizers::Range{12, 14}));
  EXPECT_EQ(all[0].types, (std::vector<int32_t>{0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1}));
}

TEST_F(Answers, TheTokenizerSaysWhatIsBetweenTheTexts) {
  take_robertas_tokens();
  const AnswerWindow window = windows(kRecord, 13, 3).at(0);
  EXPECT_EQ(window.ids, (std::vector<int32_t>{2, 14, 3, 3, 5, 6, 7, 8, 9, 10, 11, 12, 3}));
  EXPECT_EQ(window.types, std::vector<int32_t>(13));
  EXPECT_EQ(window.answer, (std::array<int32_t, 2>{8, 9}));
}

// As transformers' tokenizers do with stride 2 and truncation of the second text.
TEST_F(Answers, WindowsOverlapAndTheAnswerIsWhereItIsWhole) {
  const std::vector<AnswerWindow> all = windows(kRecord, 9, 2);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].ids, (std::vector<int32_t>{2, 14, 3, 5, 6, 7, 8, 9, 3}));
  EXPECT_EQ(all[1].ids, (std::vector<int32_t>{2, 14, 3, 8, 9, 10, 11, 12, 3}));
  EXPECT_FALSE(all[0].has_answer());
  EXPECT_EQ(all[1].answer, (std::array<int32_t, 2>{4, 5}));
}

TEST_F(Answers, AnAnswerInsideATokenIsThatToken) {
  const auto all = windows(R"({"question": "w9", "context": "w0 w1 w2",
                               "answers": [{"text": "1", "answer_start": 4}]})",
                           20, 3);
  EXPECT_EQ(all[0].answer, (std::array<int32_t, 2>{4, 4}));
}

TEST_F(Answers, SamplesHaveTheAnswersPlacesAndTheContext) {
  std::ofstream(folder_ / "data.jsonl")
      << R"({"question": "w9", "context": "w0 w1 w2",)"
      << R"( "answers": {"text": ["w2"], "answer_start": [6]}})"
      << "\n"
      << R"({"question": "w8 w8", "context": "w3", "answers": {"text": [], "answer_start": []}})"
      << "\n";
  ThreadPool pool(1);
  const auto store = std::make_shared<const AnswerStore>(read_answers(
      {(folder_ / "data.jsonl").string()}, *tokenizer_, reading(14, 2), pool, "reading"));
  EXPECT_EQ(store->questions, 2);
  EXPECT_EQ(store->unanswered, 1);
  EXPECT_EQ(store->lost, 0);
  const AnswerDataset set(store, {0, 1}, Packing::bfd, 14, 0, std::nullopt, std::nullopt);
  ASSERT_EQ(set.size(), 1);
  data::Sample sample;
  set.read(0, sample);
  EXPECT_EQ(sample.tokens, (std::vector<int64_t>{2, 14, 3, 5, 6, 7, 3, 2, 13, 13, 3, 8, 3, 0}));
  EXPECT_EQ(sample.token_types, (std::vector<int64_t>{0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 0}));
  EXPECT_EQ(sample.labels, (std::vector<int64_t>{0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 1, 0, 0}));
  EXPECT_EQ(sample.loss_mask, (std::vector<float>{1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(sample.targets, (std::vector<double>{5, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
}

TEST_F(Answers, BadRecordsAreNamed) {
  const auto says = [&](const std::string& record, const std::string& part, int64_t capacity = 50) {
    const std::string error = error_of(record, capacity);
    EXPECT_NE(error.find(part), std::string::npos) << part << " in " << error;
    EXPECT_NE(error.find("here:1"), std::string::npos) << error;
  };
  const auto answer = [](const std::string& text, int64_t begin) {
    return R"({"question": "w9", "context": "w0 w1 é w2", "answers": {"text": [")" + text +
           R"("], "answer_start": [)" + std::to_string(begin) + "]}}";
  };
  EXPECT_EQ(error_of(answer("w2", 8)), "accepted");  // characters, not bytes
  says(answer("w2", 9), "answer_start 9 and 2 characters, but the context has 10");
  says(answer("w2", -1), "answer_start -1");
  says(answer("w2", 5), "stands ' é w2'");
  says(answer("", 5), "an answer is empty");
  says(R"({"question": "w9", "context": "w0"})", "no 'answers'");
  says(R"({"question": "w9", "answers": []})", "no 'context'");
  says(R"({"question": 4, "context": "w0", "answers": []})", "'question' is 4, not a text");
  says(R"({"question": "w9", "context": "", "answers": []})", "the context has no tokens");
  says(R"({"question": "w9", "context": "w0", "answers": {"text": ["w0"], "answer_start": []}})",
       "1 texts and 0 answer_start");
  says(R"({"question": "w9", "context": "w0", "answers": ["w0"]})", "an answer has 'text'");
  says(kRecord, "which leaves room for 2 of the context's 8", 6);
  says(kRecord, "--doc-stride", 6);
  says(kRecord, "room for 0", 3);
  const auto bytes = open_vocabulary({.tokenizer_type = "ByteTokenizer"}, 256).tokenizer;
  try {
    answer_reading({}, *bytes, 20, 2);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("[CLS] question [SEP] context [SEP]"),
              std::string::npos)
        << error.what();
  }
}

TEST(BestAnswer, IsTheLargestSumOfAStartAndALaterEnd) {
  //                           start, end of each token
  const std::vector<double> s = {9, 9, 1, 5, 3, 0, 2, 2, 0, 4};
  const TokenSpan best = best_answer(std::span(s), 1, 5);
  EXPECT_EQ(best.first, 2);
  EXPECT_EQ(best.last, 4);
  EXPECT_EQ(best.score, 7);
  EXPECT_EQ(best_answer(std::span(s), 1, 5, 1).first, 1);
  EXPECT_EQ(best_answer(std::span(s), 3, 3).first, 0);
}

}  // namespace
}  // namespace megatron::corpus
