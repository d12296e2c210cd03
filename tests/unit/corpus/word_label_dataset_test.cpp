// Words with labels as samples, and entities in labels.
#include "corpus/chat/word_label_dataset.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "corpus/chat/entities.h"
#include "corpus/vocabulary.h"

namespace megatron::corpus {
namespace {

namespace fs = std::filesystem;

template <class F>
std::string thrown_by(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

// A WordPiece vocabulary whose ids are the lines' numbers.
class WordLabels : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              ("word_labels_" + std::to_string(::getpid()) + "_" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
    std::ofstream(folder_ / "vocab.txt")
        << "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nnew\n##s\nyork\nis\nbig\n-\n";
    tokenizer_ =
        std::make_unique<tokenizers::Tokenizer>(tokenizers::Tokenizer::load(folder_ / "vocab.txt"));
  }
  void TearDown() override { fs::remove_all(folder_); }

  WordLabelTokens tokens(const std::string& record, WordLabelReading reading = {}) const {
    if (reading.capacity == 0) reading.capacity = 100;
    reading.ends = tokenizers::text_ends(*tokenizer_);
    return word_label_tokens(labelled_words_of(Json::parse(record, "record"), "here:1"),
                             *tokenizer_, reading, names_, "here:1");
  }

  fs::path folder_;
  std::unique_ptr<tokenizers::Tokenizer> tokenizer_;
  const std::vector<std::string> names_ = {"O", "B-LOC", "I-LOC"};
};

// transformers' BertTokenizerFast, with is_split_into_words, has these tokens, and word_ids by
// which the first token of each word has its label.
TEST_F(WordLabels, AWordsLabelIsAtItsFirstToken) {
  const WordLabelTokens t =
      tokens(R"({"tokens": ["news", "york-s", "is", "Ω"], "ner_tags": ["B-LOC", 2, 0, null]})");
  EXPECT_EQ(t.ids, (std::vector<int32_t>{2, 5, 6, 7, 10, 1, 8, 1, 3}));
  EXPECT_EQ(t.labels, (std::vector<int32_t>{-1, 1, -1, 2, -1, -1, 0, -1, -1}));
  EXPECT_EQ(t.words, 3);
  EXPECT_EQ(t.without, 0);
}

TEST_F(WordLabels, WordsWithoutATokenAreCounted) {
  const WordLabelTokens t =
      tokens(R"({"words": ["", "is", "\u200b", "big"], "labels": [1, 0, 1, 2]})");
  EXPECT_EQ(t.ids, (std::vector<int32_t>{2, 8, 9, 3}));
  EXPECT_EQ(t.labels, (std::vector<int32_t>{-1, 0, 2, -1}));
  EXPECT_EQ(t.words, 4);
  EXPECT_EQ(t.without, 2);
}

TEST_F(WordLabels, ATextThatIsCutKeepsTheTokensAroundIt) {
  const std::string record = R"({"tokens": ["new", "york", "is", "big"], "tags": [1, 2, 0, 0]})";
  const WordLabelTokens start = tokens(record, {.capacity = 4}),
                        end = tokens(record, {.capacity = 4, .keep_start = false});
  EXPECT_EQ(start.ids, (std::vector<int32_t>{2, 5, 7, 3}));
  EXPECT_EQ(start.labels, (std::vector<int32_t>{-1, 1, 2, -1}));
  EXPECT_EQ(end.ids, (std::vector<int32_t>{2, 8, 9, 3}));
  EXPECT_EQ(end.labels, (std::vector<int32_t>{-1, 0, 0, -1}));
  EXPECT_TRUE(start.cut && end.cut);
  EXPECT_EQ(start.without, 2);
}

TEST_F(WordLabels, LabelsStandInPackedRows) {
  std::ofstream(folder_ / "data.jsonl")
      << R"({"tokens": ["new", "york"], "ner_tags": [1, 2]})" << "\n"
      << R"({"tokens": ["big"], "ner_tags": [-100], "pos_tags": [1]})" << "\n"
      << R"({"tokens": ["is"], "ner_tags": [0]})" << "\n";
  ThreadPool pool(1);
  auto store = std::make_shared<const WordLabelStore>(read_word_labels(
      {(folder_ / "data.jsonl").string()}, *tokenizer_,
      {.capacity = 12, .ends = tokenizers::text_ends(*tokenizer_)}, names_, pool, "reading"));
  EXPECT_EQ(store->words, 3);
  const WordLabelDataset set(store, {0, 1, 2}, Packing::bfd, 12, 0, std::nullopt, std::nullopt);
  ASSERT_EQ(set.size(), 1);
  data::Sample sample;
  set.read(0, sample);
  EXPECT_EQ(sample.tokens, (std::vector<int64_t>{2, 5, 7, 3, 2, 9, 3, 2, 8, 3, 0, 0}));
  EXPECT_EQ(sample.labels, (std::vector<int64_t>{0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(sample.loss_mask, (std::vector<float>{0, 1, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0}));
}

TEST_F(WordLabels, BadRecordsAreNamed) {
  const auto says = [&](const std::string& record, const std::string& part) {
    const std::string error = thrown_by([&] { tokens(record); });
    EXPECT_NE(error.find(part), std::string::npos) << part << " in " << error;
    EXPECT_NE(error.find("here:1"), std::string::npos) << error;
  };
  says(R"({"tokens": ["new"], "ner_tags": [3]})", "label 3 is outside [0, 3)");
  says(R"({"tokens": ["new"], "ner_tags": ["B-PER"]})", "'B-PER' is none of");
  says(R"({"tokens": ["new"], "ner_tags": [-1]})", "'ner_tags' has -1");
  says(R"({"tokens": ["new"], "ner_tags": [0, 0]})", "1 'tokens' and 2 'ner_tags'");
  says(R"({"tokens": ["new", 5], "ner_tags": [0, 0]})", "'tokens' has 5, not a word");
  says(R"({"tokens": "new", "ner_tags": [0]})", "'tokens' is \"new\", not a list");
  says(R"({"tokens": [], "ner_tags": []})", "'tokens' is empty");
  says(R"({"text": "new", "labels": [0]})", "neither 'tokens' nor 'words'");
  says(R"({"tokens": ["new"]})", "'ner_tags', 'labels'");
  says("[1]", "a record is a JSON object");
  const auto bytes = open_vocabulary({.tokenizer_type = "ByteTokenizer"}, 256).tokenizer;
  const std::string error = thrown_by(
      [&] { word_label_tokens({{"a"}, {Json(0)}}, *bytes, {.capacity = 9}, names_, "here:1"); });
  EXPECT_NE(error.find("offsets are not available for ByteTokenizer"), std::string::npos) << error;
}

// Counts of seqeval 1.2.2 for the same labels.
TEST(EntityCounts, AreSeqevals) {
  const std::vector<std::string> names = {"O", "B-PER", "I-PER", "B-LOC", "I-LOC"};
  ASSERT_TRUE(EntityCounts::are_parts(names));
  EXPECT_FALSE(EntityCounts::are_parts(std::vector<std::string>{"O", "NOUN"}));
  EXPECT_FALSE(EntityCounts::are_parts(std::vector<std::string>{"O"}));
  EntityCounts counts(names);
  counts.add(std::vector<int32_t>{1, 2, 0, 3, 4, 1}, std::vector<int32_t>{1, 2, 0, 3, 0, 2});
  counts.add(std::vector<int32_t>{0, 0}, std::vector<int32_t>{2, 3});
  const EntityCounts::Counts all = counts.all();
  EXPECT_EQ(all.real, 3);
  EXPECT_EQ(all.predicted, 5);
  EXPECT_EQ(all.right, 2);  // I-PER may begin an entity
  EXPECT_DOUBLE_EQ(all.precision(), 0.4);
  EXPECT_DOUBLE_EQ(all.recall(), 2.0 / 3);
  EXPECT_DOUBLE_EQ(all.f1(), 0.5);
  EXPECT_EQ(counts.by_type().at("LOC").right, 0);
  // Two runs of one type are told apart by B; types by their change.
  EntityCounts adjacent(names);
  adjacent.add(std::vector<int32_t>{1, 1, 2, 4, 4}, std::vector<int32_t>{1, 2, 2, 4, 3});
  EXPECT_EQ(adjacent.all().real, 3);
  EXPECT_EQ(adjacent.all().predicted, 3);
  EXPECT_EQ(adjacent.all().right, 0);
}

}  // namespace
}  // namespace megatron::corpus
