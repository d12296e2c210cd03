// Samples for T5: what the default does otherwise than Megatron-LM, and errors. golden/selftest
// compares the rest with Megatron-LM's samples.
#include "data/t5_dataset.h"

#include <algorithm>

#include "support.h"
#include "tokenizers/trainer/bpe_trainer.h"

namespace megatron::data {
namespace {

constexpr int64_t kPad = 0, kBegin = 1, kEnd = 2, kStop = 3, kWords = 20, kVocabulary = 200,
                  kFirstSentinel = 100;

// Ids below 20 and from 100 on are special; kStop is a special token that stands in texts.
T5Tokens toy_tokens(int64_t sentinels = 30, int64_t pad = kPad) {
  T5Tokens tokens{.roles = {.cls = kBegin, .sep = kStop, .mask = -1, .pad = pad},
                  .begin = kBegin,
                  .end = kEnd,
                  .sentinels = {}};
  tokens.roles.eos = kEnd;
  for (int64_t id = 0; id < kVocabulary; ++id) {
    tokens.roles.present.push_back(true);
    tokens.roles.special.push_back(id < kWords || id >= kFirstSentinel);
    tokens.roles.continues.push_back(false);
  }
  for (int64_t i = 0; i < sentinels; ++i) tokens.sentinels.push_back(kFirstSentinel + i);
  return tokens;
}

using Documents = std::vector<std::vector<std::vector<int64_t>>>;

// 12 documents of 2 to 7 sentences of 1 to 9 ordinary tokens, of which `stops` end with kStop.
Documents toy_documents(bool stops = false) {
  RandomState random(7);
  Documents documents(12);
  for (auto& sentences : documents) {
    sentences.resize(static_cast<size_t>(random.integer(2, 8)));
    for (auto& sentence : sentences) {
      sentence.resize(static_cast<size_t>(random.integer(1, 10)));
      for (int64_t& token : sentence) token = random.integer(kWords, kFirstSentinel);
      if (stops) sentence.push_back(kStop);
    }
  }
  return documents;
}

T5DatasetConfig toy_config(double probability = 0.3) {
  T5DatasetConfig config;
  config.sequence_length = 32;
  config.decoder_length = 32;
  config.masking.probability = probability;
  return config;
}

class T5DatasetTest : public ::testing::Test {
 protected:
  std::shared_ptr<const IndexedDataset> stored(const Documents& documents) {
    const std::string prefix = folder_ / std::to_string(count_++);
    IndexedDatasetBuilder builder(prefix, DType::u16);
    for (const auto& sentences : documents) {
      for (const auto& sentence : sentences) builder.add_item(sentence);
      builder.end_document();
    }
    builder.finalize();
    return std::make_shared<const IndexedDataset>(prefix);
  }
  T5Dataset open(const T5DatasetConfig& config, const T5Tokens& tokens = toy_tokens(),
                 const Documents& documents = toy_documents()) {
    return T5Dataset(stored(documents), tokens, config, Split::train, 200);
  }

  TemporaryDirectory folder_;
  int count_ = 0;
};

// The text of an example: each sentinel of the encoder's text replaced by its span in the labels.
std::vector<int64_t> text_of(const T5Example& example) {
  std::vector<int64_t> text;
  int64_t sentinels = 0;
  for (const int64_t token : example.encoder_tokens) {
    if (token < kFirstSentinel) {
      text.push_back(token);
      continue;
    }
    EXPECT_EQ(token, kFirstSentinel + sentinels++);
    auto at = std::ranges::find(example.labels, token);
    EXPECT_NE(at, example.labels.end());
    for (++at; at != example.labels.end() && *at < kFirstSentinel && *at != kEnd; ++at)
      text.push_back(*at);
  }
  return text;
}

std::vector<int64_t> stored_text(const T5Dataset& set, const Documents& documents, int64_t k) {
  std::vector<int64_t> text;
  const auto row = set.samples().row(k);
  int64_t number = 0;
  for (const auto& sentences : documents)
    for (const auto& sentence : sentences) {
      if (number >= row.first && number < row.end)
        text.insert(text.end(), sentence.begin(), sentence.end());
      ++number;
    }
  text.resize(static_cast<size_t>(std::min<int64_t>(std::ssize(text), row.target)));
  return text;
}

TEST_F(T5DatasetTest, SpansInPlaceOfTheirSentinelsAreTheText) {
  for (const bool stops : {false, true}) {
    const Documents documents = toy_documents(stops);
    const T5Dataset set = open(toy_config(), toy_tokens(), documents);
    T5Example example;
    int64_t spans = 0, truncated = 0;
    for (int64_t k = 0; k < set.size(); ++k) {
      set.read(k, example);
      EXPECT_EQ(text_of(example), stored_text(set, documents, k));
      ASSERT_EQ(example.decoder_tokens.size(), example.labels.size());
      ASSERT_EQ(example.loss_mask, std::vector<float>(example.labels.size(), 1.0f));
      EXPECT_EQ(example.decoder_tokens[0], kBegin);
      EXPECT_EQ(example.labels.back(), kEnd);
      EXPECT_TRUE(std::equal(example.labels.begin(), example.labels.end() - 1,
                             example.decoder_tokens.begin() + 1));
      spans += std::ranges::count_if(example.labels, [](auto id) { return id >= kFirstSentinel; });
      truncated += example.truncated;
    }
    EXPECT_GT(spans, set.size());
    EXPECT_GT(truncated, 0);
  }
}

// A special token inside of a span: the default keeps it, Megatron-LM loses it from both texts.
TEST_F(T5DatasetTest, SpecialTokensOfTheDataAreNotLost) {
  const Documents documents = toy_documents(true);
  T5DatasetConfig config = toy_config();
  config.masking.geometric = false;
  config.masking.longer_ngrams = true;
  const auto lost = [&] {
    const T5Dataset set = open(config, toy_tokens(), documents);
    int64_t count = 0;
    T5Example example;
    for (int64_t k = 0; k < set.size(); ++k) {
      set.read(k, example);
      const std::vector<int64_t> own = text_of(example), all = stored_text(set, documents, k);
      count += std::ranges::count(all, kStop) - std::ranges::count(own, kStop);
    }
    return count;
  };
  EXPECT_EQ(lost(), 0);
  config.megatron_data_order = true;
  EXPECT_GT(lost(), 0);
}

TEST_F(T5DatasetTest, PaddingMayBeAnyToken) {
  T5DatasetConfig config = toy_config();
  PaddedT5Sample sample;
  const T5Dataset set = open(config, toy_tokens(30, kEnd));
  EXPECT_EQ(set.pad_id(), kEnd);
  set.read_padded(0, sample);
  EXPECT_EQ(sample.text_enc.back(), kEnd);
  EXPECT_EQ(sample.labels[static_cast<size_t>(sample.decoder_length) - 1], kEnd);
  EXPECT_EQ(sample.labels[static_cast<size_t>(sample.decoder_length)], -1);
  config.megatron_data_order = true;
  const T5Dataset megatron = open(config, toy_tokens(30, kEnd));
  EXPECT_EQ(megatron.pad_id(), -1);
  megatron.read_padded(0, sample);
  EXPECT_EQ(sample.labels[static_cast<size_t>(sample.decoder_length)], 0);
}

TEST_F(T5DatasetTest, NamesSamplesThatDoNotFit) {
  T5DatasetConfig config = toy_config();
  const auto first_error = [&](const T5Tokens& tokens) {
    const T5Dataset set = open(config, tokens);
    return error_of([&] {
      T5Example example;
      for (int64_t k = 0; k < set.size(); ++k) set.read(k, example);
    });
  };
  EXPECT_EQ(first_error(toy_tokens()), "");
  const std::string few = first_error(toy_tokens(1));
  EXPECT_NE(few.find("has only 1 sentinels: add more (--vocab-extra-ids)"), std::string::npos)
      << few;
  config.decoder_length = 5;
  const std::string narrow = first_error(toy_tokens());
  EXPECT_NE(narrow.find("but its length is 5: make it longer (--decoder-seq-length)"),
            std::string::npos)
      << narrow;
}

TEST_F(T5DatasetTest, NamesRequestsOutOfRange) {
  const auto error = [&](const T5DatasetConfig& config, const Documents& documents) {
    return error_of([&] { open(config, toy_tokens(), documents); });
  };
  T5DatasetConfig config = toy_config();
  const Documents none(3);
  EXPECT_NE(error(config, none)
                .find("none of the 3 documents of the train split makes a sample: "
                      "3 have fewer than 1 sentence,"),
            std::string::npos)
      << error(config, none);
  config.decoder_length = 0;
  EXPECT_NE(error(config, toy_documents()).find("the decoder's length is 0"), std::string::npos);
  config = toy_config();
  config.sequence_length = 3;
  EXPECT_NE(error(config, toy_documents()).find("room for 1 tokens"), std::string::npos);
}

tokenizers::Tokenizer trained(const std::vector<std::string>& special) {
  tokenizers::BpeTrainerOptions options;
  options.vocabulary_size = 300;
  options.special_tokens = special;
  tokenizers::BpeTrainer trainer(options);
  trainer.add("a text to learn from");
  return trainer.train();
}

TEST(T5TokensTest, NamesTokensThatTheTokenizerLacks) {
  const auto error = [](const std::vector<std::string>& special) {
    return error_of([&] { t5_tokens(trained(special)); });
  };
  EXPECT_NE(error({"</s>", "<extra_id_0>"}).find("has no pad_token"), std::string::npos);
  EXPECT_NE(error({"<pad>", "<extra_id_0>"}).find("has no eos_token and no sep_token"),
            std::string::npos);
  EXPECT_NE(error({"<pad>", "</s>"}).find("has no <extra_id_0>: add sentinels"), std::string::npos);
}

// T5's own tokenizer has no beginning of sequence: the decoder's text begins with padding.
TEST(T5TokensTest, TheDecoderBeginsWithPaddingWithoutABeginning) {
  const tokenizers::Tokenizer tokenizer =
      trained({"<pad>", "</s>", "<extra_id_1>", "<extra_id_0>", "<extra_id_3>"});
  const T5Tokens tokens = t5_tokens(tokenizer);
  EXPECT_EQ(tokens.begin, tokenizer.token_id("<pad>"));
  EXPECT_EQ(tokens.end, tokenizer.token_id("</s>"));
  EXPECT_EQ(tokens.roles.cls, -1);
  EXPECT_EQ(t5_tokens(tokenizer, 7).begin, 7);  // as the model says
  EXPECT_EQ(tokens.sentinels, (std::vector<int64_t>{*tokenizer.token_id("<extra_id_0>"),
                                                    *tokenizer.token_id("<extra_id_1>")}));
}

TEST(T5TokensTest, SentinelsMayBeginWithTheMarkOfASpaceAsThoseOfMt5) {
  const tokenizers::Tokenizer tokenizer =
      trained({"<pad>", "</s>", "\u2581<extra_id_1>", "\u2581<extra_id_0>"});
  EXPECT_EQ(t5_tokens(tokenizer).sentinels,
            (std::vector<int64_t>{*tokenizer.token_id("\u2581<extra_id_0>"),
                                  *tokenizer.token_id("\u2581<extra_id_1>")}));
}

}  // namespace
}  // namespace megatron::data
