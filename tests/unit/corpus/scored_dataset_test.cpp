// Pairs of texts and texts with labels as samples.
#include "corpus/chat/scored_dataset.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "corpus/vocabulary.h"
#include "word_vocabulary.h"

namespace megatron::corpus {
namespace {

template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

// Texts of ids by hand: pairs or single texts of these lengths, with ascending ids.
std::shared_ptr<const ScoredStore> store_of(int64_t per_example,
                                            const std::vector<int64_t>& lengths) {
  auto store = std::make_shared<ScoredStore>();
  store->texts_per_example = per_example;
  for (const int64_t length : lengths) {
    for (int64_t i = 0; i < length; ++i)
      store->ids.push_back(static_cast<int32_t>(store->ids.size()));
    store->scored.push_back(std::ssize(store->ids) - 1);
    store->ends.push_back(std::ssize(store->ids));
  }
  const auto examples = static_cast<size_t>(store->size());
  for (size_t i = 0; i < examples; ++i) {
    store->sources.add(i == 0 ? "first" : "rest");
    if (per_example == 2) store->margins.push_back(0.5 * static_cast<double>(i + 1));
    else store->labels.push_back(static_cast<int32_t>(i + 4));
  }
  return store;
}

TEST(ScoredDataset, APairIsTwoDocumentsOfARow) {
  const ScoredDataset set(store_of(2, {2, 3, 1, 2}), {0, 1}, Packing::bfd, 10, 99, 1, std::nullopt);
  ASSERT_EQ(set.size(), 1);
  data::Sample sample;
  set.read(0, sample);
  EXPECT_EQ(sample.tokens, (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 99, 99}));
  EXPECT_EQ(sample.loss_mask, (std::vector<float>{0, 1, 0, 0, 1, 1, 0, 1, 0, 0}));
  EXPECT_EQ(sample.targets, (std::vector<double>{0, 0.5, 0, 0, 0, 1, 0, 0, 0, 0}));
  EXPECT_EQ(sample.position_ids, (std::vector<int64_t>{0, 1, 0, 1, 2, 0, 0, 1, 0, 0}));
  EXPECT_EQ(sample.segment_begin, (std::vector<int32_t>{0, 0, 2, 2, 2, 5, 6, 6, 8, 9}));
  EXPECT_EQ(sample.sources, (std::vector<int32_t>{0, 0, 0, 0, 0, 1, 1, 1, -1, -1}));
  set.read_filler(sample);
  EXPECT_EQ(sample.loss_mask, std::vector<float>(10, 0));
}

TEST(ScoredDataset, ALabelIsAtTheTextsLastToken) {
  const ScoredDataset set(store_of(1, {3, 2}), {0, 1}, Packing::bfd, 6, 99, 1, std::nullopt);
  data::Sample sample;
  set.read(0, sample);
  EXPECT_EQ(sample.loss_mask, (std::vector<float>{0, 0, 1, 0, 1, 0}));
  EXPECT_EQ(sample.labels, (std::vector<int64_t>{0, 0, 4, 0, 5, 0}));
  EXPECT_TRUE(sample.targets.empty());
}

// Files, with a tokenizer whose tokens are bytes.
class ScoredFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              ("scored_" + std::to_string(::getpid()) + "_" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::vector<std::string> file(const std::string& text) const {
    std::ofstream(folder_ / "data.jsonl") << text;
    return {(folder_ / "data.jsonl").string()};
  }
  ScoredStore pairs(const std::string& text, int64_t capacity = 100, bool keep_start = true,
                    int32_t padding = -1) const {
    ThreadPool pool(1);
    return read_pairs(file(text), tokens_,
                      {.capacity = capacity, .keep_start = keep_start, .padding = padding}, pool,
                      "reading");
  }
  ScoredStore labelled(const std::string& text, const std::vector<std::string>& names) const {
    ThreadPool pool(1);
    return read_labelled(file(text), tokens_, {.capacity = 100}, names, pool, "reading");
  }
  static std::string text_of(const ScoredStore& store, int64_t text) {
    std::string all;
    for (int64_t i = store.begin(text); i < store.ends[static_cast<size_t>(text)]; ++i)
      all += static_cast<char>(store.ids[static_cast<size_t>(i)]);
    return all;
  }

  std::filesystem::path folder_;
  const std::shared_ptr<const tokenizers::Tokenizer> tokenizer_ =
      open_vocabulary({.tokenizer_type = "ByteTokenizer"}, 256).tokenizer;
  const tokenizers::ChatTemplate template_;
  const ChatTokenizer tokens_{*tokenizer_, template_};
};

TEST_F(ScoredFiles, APairsTextsStandBehindThePrompt) {
  const ScoredStore store = pairs(R"({"prompt": "ab", "chosen": "c", "rejected": "d", "margin": 2})"
                                  "\n"
                                  R"({"chosen": "xy", "rejected": "z"})");
  ASSERT_EQ(store.size(), 2);
  EXPECT_EQ(text_of(store, 0).substr(0, 3), "abc");
  EXPECT_EQ(text_of(store, 1).substr(0, 3), "abd");
  EXPECT_EQ(text_of(store, 2).substr(0, 2), "xy");
  EXPECT_EQ(store.margins, (std::vector<double>{2, 0}));
  EXPECT_EQ(store.scored[0], store.ends[0] - 1);
}

TEST_F(ScoredFiles, TheScoredTokenIsTheLastThatIsNoPadding) {
  const ScoredStore store = pairs(R"({"chosen": "abcc", "rejected": "d"})", 100, true, 'c');
  EXPECT_EQ(store.ids[static_cast<size_t>(store.scored[0])],
            tokenizer_->eos() ? *tokenizer_->eos() : 'b');
}

TEST_F(ScoredFiles, AnEncodersTextIsScoredAtItsFirstToken) {
  ThreadPool pool(1);
  const ScoredReading reading{.capacity = 4,
                              .padding = 'a',
                              .scored = models::ScoredTokens::first_token,
                              .ends = {.first = 'a', .last = 'z'}};
  const ScoredStore store = read_labelled(file(R"({"text": "abcdefz", "label": 1})"
                                               "\n"
                                               R"({"text": "az", "label": 0})"),
                                          tokens_, reading, {"no", "yes"}, pool, "reading");
  EXPECT_EQ(text_of(store, 0), "abcz");
  EXPECT_EQ(text_of(store, 1), "az");
  EXPECT_EQ(store.scored, (std::vector<int64_t>{0, 4}));
  EXPECT_EQ(store.labels, (std::vector<int32_t>{1, 0}));
  EXPECT_EQ(scored_token(store.ids, -1, models::ScoredTokens::mean), 0);
  EXPECT_EQ(scored_token({}, -1, models::ScoredTokens::first_token), -1);
}

// [CLS] text [SEP] text_pair [SEP]; a single text is among them.
TEST_F(ScoredFiles, TwoTextsAreJoinedByTheTokenizer) {
  testing::write_word_vocabulary(folder_ / "words", 20);
  const tokenizers::Tokenizer words = tokenizers::Tokenizer::load(folder_ / "words");
  const ChatTokenizer tokens(words, template_);
  const auto read = [&](const std::string& text, ScoredReading reading) {
    ThreadPool pool(1);
    reading.scored = models::ScoredTokens::first_token;
    reading.ends = tokenizers::text_ends(words);
    return read_labelled(file(text), tokens, reading, {"no", "yes"}, pool, "reading");
  };
  const std::string pair = R"({"text": "w5 w6", "text_pair": "w7 w8 w9 w10", "label": 1})",
                    data = R"({"text": "w11", "label": 0})"
                           "\n" +
                           pair;
  const auto store =
      std::make_shared<const ScoredStore>(read(data, {.capacity = 9, .token_types = 2}));
  EXPECT_EQ(store->ids, (std::vector<int32_t>{2, 11, 3, 2, 5, 6, 3, 7, 8, 9, 10, 3}));
  EXPECT_EQ(store->types, (std::vector<int32_t>{0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1}));
  EXPECT_EQ(store->cut, 0);
  data::Sample sample;
  const ScoredDataset set(store, {0, 1}, Packing::bfd, 13, 0, std::nullopt, std::nullopt);
  set.read(0, sample);
  EXPECT_EQ(sample.tokens, (std::vector<int64_t>{2, 5, 6, 3, 7, 8, 9, 10, 3, 2, 11, 3, 0}));
  EXPECT_EQ(sample.token_types, (std::vector<int64_t>{0, 0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0}));
  EXPECT_EQ(sample.labels, (std::vector<int64_t>{1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
  const ScoredStore cut = read(pair, {.capacity = 6, .keep_start = false});
  EXPECT_EQ(cut.ids, (std::vector<int32_t>{2, 6, 3, 9, 10, 3}));
  EXPECT_TRUE(cut.types.empty());
  EXPECT_EQ(cut.cut, 1);
  EXPECT_NE(error_of([&] { read(pair, {.capacity = 3}); }).find("adds 3 tokens to two texts"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              read(R"({"messages": [], "text_pair": "w5", "label": 1})", {.capacity = 9});
            }).find("no 'text'"),
            std::string::npos);
}

TEST_F(ScoredFiles, LongTextsAreCutAndShortOnesStayWhole) {
  const std::string pair = R"({"chosen": "0123456789abcdef", "rejected": "xyz"})";
  const ScoredStore store = pairs(pair, 12);
  EXPECT_EQ(store.length(0), 12);
  EXPECT_EQ(store.cut, 1);
  EXPECT_TRUE(text_of(store, 0).starts_with("0123456"));
  EXPECT_TRUE(text_of(store, 1).starts_with("xyz"));
  EXPECT_TRUE(text_of(pairs(pair, 12, false), 1).starts_with("xyz"));
  EXPECT_FALSE(text_of(pairs(pair, 12, false), 0).starts_with("0"));
}

TEST_F(ScoredFiles, APairNeverExceedsItsRow) {
  for (int64_t capacity = 2; capacity < 12; ++capacity) {
    for (const char* rejected : {"q", "rstu", "vwxyzvwxyz"}) {
      const ScoredStore store = pairs(
          R"({"chosen": "0123456789", "rejected": ")" + std::string(rejected) + "\"}", capacity);
      EXPECT_LE(store.length(0), capacity) << rejected;
      EXPECT_GE(store.length(0), std::min<int64_t>(capacity, 10)) << rejected;
    }
  }
}

TEST_F(ScoredFiles, PairsThatAreEqualWhenCutAreLeftOut) {
  const std::string text = R"({"prompt": "same same same", "chosen": "a", "rejected": "b"})"
                           "\n"
                           R"({"chosen": "a", "rejected": "b"})";
  EXPECT_EQ(pairs(text, 8).dropped, 1);
  EXPECT_EQ(pairs(text, 8).size(), 1);
  EXPECT_EQ(pairs(text, 8, false).dropped, 0);
}

TEST_F(ScoredFiles, LabelsAreNamesOrIndices) {
  const std::vector<std::string> names = {"no", "yes"};
  const ScoredStore store =
      labelled(R"([{"text": "a", "label": "yes"}, {"text": "b", "label": 0}])", names);
  EXPECT_EQ(store.labels, (std::vector<int32_t>{1, 0}));
  EXPECT_EQ(label_names_in(file(R"([{"text": "a", "label": "y"}, {"text": "b", "label": "n"}])")),
            (std::vector<std::string>{"n", "y"}));
  EXPECT_EQ(label_names_in(file(R"([{"text": "a", "label": 2}, {"text": "b", "label": 0}])")),
            (std::vector<std::string>{"LABEL_0", "LABEL_1", "LABEL_2"}));
}

TEST_F(ScoredFiles, BadRecordsAreNamed) {
  const auto says = [](const auto& f, const std::string& part) {
    EXPECT_NE(error_of(f).find(part), std::string::npos) << part << " in " << error_of(f);
  };
  says([&] { pairs(R"({"chosen": "a"})"); }, "data.jsonl:1: a pair has 'chosen' and 'rejected'");
  says([&] { pairs(R"({"chosen": "a", "rejected": "a"})"); }, "have the same tokens");
  says([&] { pairs(R"({"chosen": "a", "rejected": 5})"); }, "must all be texts");
  says([&] { pairs(R"({"chosen": "a", "rejected": "b", "margin": "c"})"); }, "'margin' is \"c\"");
  says([&] { labelled(R"({"text": "a"})", {"n", "y"}); },
       "data.jsonl:1: the record has no 'label'");
  says([&] { labelled(R"({"text": "a", "label": 7})", {"n", "y"}); }, "label 7 is outside [0, 2)");
  says([&] { labelled(R"({"text": "a", "label": "x"})", {"n", "y"}); }, "'x' is none of");
  says([&] { labelled(R"({"text": "a", "label": -1})", {"n", "y"}); }, "'label' is -1");
  says([&] { label_names_in(file(R"([{"text": "a", "label": 1}, {"text": "b", "label": "x"}])")); },
       "use names or indices for all");
  says([&] { label_names_in(file(R"({"text": "a", "label": "x"})")); }, "at least two");
  says([&] { label_names_in(file(R"({"text": "a", "label": 999999})")); }, "the label 999999");
  says([&] { pairs(R"({"chosen": "a", "rejected": "b"})", 1); }, "--seq-length is 1");
}

}  // namespace
}  // namespace megatron::corpus
