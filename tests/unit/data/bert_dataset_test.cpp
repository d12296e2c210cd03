// Samples for BERT: what the default does otherwise than Megatron-LM, and errors. golden/selftest
// compares the rest with Megatron-LM's samples.
#include "data/bert_dataset.h"

#include <algorithm>

#include "support.h"
#include "tokenizers/trainer/bpe_trainer.h"

namespace megatron::data {
namespace {

constexpr int64_t kCls = 1, kSep = 2, kMask = 3, kWords = 20, kPieces = 60, kVocabulary = 100;

// Ids below 20 are special, those from 60 on continue words.
BertTokens toy_tokens(int64_t pad = 0) {
  BertTokens tokens{.cls = kCls, .sep = kSep, .mask = kMask, .pad = pad, .bos = {}, .eos = {}};
  for (int64_t id = 0; id < kVocabulary; ++id) {
    tokens.present.push_back(true);
    tokens.special.push_back(id < kWords);
    tokens.continues.push_back(id >= kPieces);
  }
  return tokens;
}

using Documents = std::vector<std::vector<std::vector<int64_t>>>;

std::shared_ptr<const IndexedDataset> stored(const std::string& prefix,
                                             const Documents& documents) {
  IndexedDatasetBuilder builder(prefix, DType::u16);
  for (const auto& sentences : documents) {
    for (const auto& sentence : sentences) builder.add_item(sentence);
    builder.end_document();
  }
  builder.finalize();
  return std::make_shared<const IndexedDataset>(prefix);
}

// 12 documents of 2 to 7 sentences of 1 to 9 ordinary tokens.
Documents toy_documents() {
  RandomState random(7);
  Documents documents(12);
  for (auto& sentences : documents) {
    sentences.resize(static_cast<size_t>(random.integer(2, 8)));
    for (auto& sentence : sentences) {
      sentence.resize(static_cast<size_t>(random.integer(1, 10)));
      for (int64_t& token : sentence) token = random.integer(kWords, kVocabulary);
    }
  }
  return documents;
}

BertDatasetConfig toy_config(double probability = 0.15) {
  return {
      .sequence_length = 32, .split = {}, .masking = {.probability = probability}, .memory = {}};
}

class BertDatasetTest : public ::testing::Test {
 protected:
  BertDataset open(const BertDatasetConfig& config, const BertTokens& tokens = toy_tokens()) {
    if (!source_) source_ = stored(folder_ / "toy", toy_documents());
    return BertDataset(source_, tokens, config, Split::train, 200);
  }
  std::string error_of_set(const Documents& documents, const BertDatasetConfig& config,
                           std::optional<int64_t> samples = 10) {
    const auto source = stored(folder_ / "wrong", documents);
    return error_of([&] { BertDataset(source, toy_tokens(), config, Split::train, samples); });
  }

  TemporaryDirectory folder_;
  std::shared_ptr<const IndexedDataset> source_;
};

TEST_F(BertDatasetTest, ExamplesAreTheSamplesWithoutTheirPadding) {
  for (const bool megatron : {false, true}) {
    BertDatasetConfig config = toy_config();
    config.megatron_data_order = megatron;
    const BertDataset set = open(config);
    ASSERT_GE(set.size(), 200);
    BertExample example;
    PaddedBertSample padded;
    int64_t masked = 0, cut = 0, swapped = 0;
    for (int64_t k = 0; k < set.size(); ++k) {
      set.read(k, example);
      set.read_padded(k, padded);
      ASSERT_LE(example.tokens.size(), 32u);
      ASSERT_EQ(example.labels.size(), example.tokens.size());
      ASSERT_EQ(padded.text.size(), 32u);
      for (size_t i = 0; i < 32; ++i) {
        const bool token = i < example.tokens.size();
        EXPECT_EQ(padded.text[i], token ? example.tokens[i] : 0);
        EXPECT_EQ(padded.types[i], token ? example.token_types[i] : 0);
        EXPECT_EQ(padded.padding_mask[i] == 0, !token || (megatron && example.tokens[i] == 0));
        const bool counts = token && example.labels[i] != TokenMasker::kIgnored;
        EXPECT_EQ(padded.loss_mask[i], counts);
        EXPECT_EQ(padded.labels[i], counts ? example.labels[i] : -1);
        masked += counts;
      }
      EXPECT_EQ(padded.is_random, example.is_random);
      cut += example.truncated;
      swapped += example.is_random;
    }
    EXPECT_GT(masked, set.size());
    EXPECT_GT(cut, 0);
    EXPECT_GT(swapped, set.size() / 4);
    EXPECT_LT(swapped, 3 * set.size() / 4);
  }
}

// Counts masked tokens that became a special one other than the mask.
int64_t special_replacements(const BertDataset& set) {
  int64_t count = 0;
  BertExample example;
  for (int64_t k = 0; k < set.size(); ++k) {
    set.read(k, example);
    for (size_t i = 0; i < example.tokens.size(); ++i)
      count += example.labels[i] != TokenMasker::kIgnored && example.tokens[i] < kWords &&
               example.tokens[i] != kMask;
  }
  return count;
}

TEST_F(BertDatasetTest, SpecialTokensAreNoReplacements) {
  BertDatasetConfig config = toy_config(0.9);
  EXPECT_EQ(open(config).masker().replacements(), kVocabulary - kWords);
  EXPECT_EQ(special_replacements(open(config)), 0);
  config.megatron_data_order = true;
  EXPECT_GT(special_replacements(open(config)), 0);
}

// With the end of a part as padding, Megatron-LM's order loses it or its labels.
TEST_F(BertDatasetTest, PaddingMayBeAnyToken) {
  PaddedBertSample sample;
  const BertDataset set = open(toy_config(), toy_tokens(kSep));
  EXPECT_EQ(set.pad_id(), kSep);
  for (int64_t k = 0; k < set.size(); ++k) {
    set.read_padded(k, sample);
    const auto length = static_cast<size_t>(std::ranges::count(sample.padding_mask, 1));
    EXPECT_EQ(sample.text[length - 1], kSep);
    EXPECT_EQ(sample.padding_mask[length - 1], 1);
    for (size_t i = length; i < 32; ++i) {
      EXPECT_EQ(sample.text[i], kSep);
      EXPECT_EQ(sample.types[i], 0);
      EXPECT_EQ(sample.labels[i], -1);
    }
  }
  BertDatasetConfig config = toy_config();
  config.megatron_data_order = true;
  EXPECT_EQ(open(config, toy_tokens(kSep)).pad_id(), -1);
  config.allow_ambiguous_pad_tokens = true;
  EXPECT_EQ(open(config, toy_tokens(kSep)).pad_id(), kSep);
}

TEST_F(BertDatasetTest, PermutedTokensDoNotDependOnTheOrderOfAccess) {
  BertDatasetConfig config = toy_config(0.3);
  config.masking.permutation = true;
  const BertDataset set = open(config);
  std::vector<BertExample> forwards(50);
  for (int64_t k = 0; k < 50; ++k) set.read(k, forwards[static_cast<size_t>(k)]);
  int64_t permuted = 0;
  BertExample again;
  for (int64_t k = 49; k >= 0; --k) {
    const BertExample& first = forwards[static_cast<size_t>(k)];
    set.read(k, again);
    EXPECT_EQ(again.tokens, first.tokens);
    EXPECT_EQ(again.labels, first.labels);
    // A permutation moves tokens: some become one that stood elsewhere in the sample.
    for (size_t i = 0; i < first.tokens.size(); ++i)
      permuted += first.labels[i] >= 0 && first.tokens[i] != first.labels[i] &&
                  std::ranges::count(first.labels, first.tokens[i]) > 0;
  }
  EXPECT_GT(permuted, 20);
}

TEST(TokenMasking, WordsEndWithTheirPart) {
  const std::vector<int64_t> text = {kCls, 30, kSep, 70, 71, kSep};
  for (const bool megatron : {false, true}) {
    const TokenMasker masker({.probability = 0.4, .max_ngram = 1, .megatron_data_order = megatron},
                             toy_tokens());
    for (int64_t seed = 0; seed < 20; ++seed) {
      RandomState random(seed);
      std::vector<int64_t> tokens = text, labels(text.size());
      masker.mask(tokens, 10, random, nullptr, labels);
      const auto masked = [&](size_t i) { return labels[i] != TokenMasker::kIgnored; };
      EXPECT_EQ(masked(3), masked(4));
      // Two tokens may be masked: too few for all three of Megatron-LM's word.
      EXPECT_EQ(masked(1) || masked(3), !megatron);
      EXPECT_FALSE(masked(1) && masked(3));
    }
  }
}

TEST(TokenMasking, RefusesOptionsOutOfRange) {
  const auto error = [](const MaskingOptions& options) {
    return error_of([&] { TokenMasker(options, toy_tokens()); });
  };
  EXPECT_TRUE(error({.probability = 0.15}).empty());
  for (const double p : {0.0, 1.0, -0.1, 1.5})
    EXPECT_NE(error({.probability = p}).find("--mask-prob is"), std::string::npos) << p;
  EXPECT_NE(error({.max_ngram = 0}).find("0 words"), std::string::npos);
  EXPECT_NE(error({.geometric = true, .permutation = true}).find("cannot be combined"),
            std::string::npos);
}

TEST_F(BertDatasetTest, NamesDataThatMakeNoSamples) {
  const Documents whole = {{{30, 31, 32}}, {{33, 34}}, {std::vector<int64_t>(600, 30), {31}}};
  const std::string error = error_of_set(whole, toy_config());
  for (const char* part :
       {"none of the 3 documents of the train split", "2 have fewer than 2 sentences",
        "1 have a sentence of more than 512 tokens", "--split-sentences", "--bert-no-binary-head"})
    EXPECT_NE(error.find(part), std::string::npos) << part << "\n" << error;
  BertDatasetConfig single = toy_config();
  single.next_sentence = false;
  EXPECT_EQ(error_of_set(whole, single), "");
}

TEST_F(BertDatasetTest, NamesRequestsOutOfRange) {
  const Documents documents = {{{30}, {31}}, {{32}, {33}}};
  const auto expect_error = [&](const BertDatasetConfig& config, const std::string& part,
                                std::optional<int64_t> samples = 10) {
    const std::string error = error_of_set(documents, config, samples);
    EXPECT_NE(error.find(part), std::string::npos) << part << "\n" << error;
  };
  BertDatasetConfig config = toy_config();
  expect_error(config, "number of samples of the train set is not known", std::nullopt);
  config.memory = 1 << 20;
  expect_error(config, "more than half of the available", 1 << 20);
  config = toy_config();
  config.sequence_length = 4;
  expect_error(config, "room for 1 tokens");
  config = toy_config();
  config.seed = 0;
  expect_error(config, "--seed is 0");
  config.seed = 2147483647;
  expect_error(config, "--seed is 2147483647");
  config = toy_config();
  config.short_sequence_probability = 1.5;
  expect_error(config, "--short-seq-prob is 1.5");
  config = toy_config();
  config.split = "1,99,0";
  expect_error(config, "the train split gets none of 2 documents (--split 1,99,0)");
  config.split = "0,1,0";
  expect_error(config, "weight 0");
}

TEST_F(BertDatasetTest, NamesTokensOutsideTheVocabulary) {
  const auto source = stored(folder_ / "large", {{{30, 100}, {31}}});
  const BertDataset set(source, toy_tokens(), toy_config(), Split::train, 1);
  BertExample example;
  EXPECT_NE(error_of([&] { set.read(0, example); }).find("contains token 100"), std::string::npos);
  EXPECT_NE(error_of([&] { set.read(set.size(), example); }).find("does not exist"),
            std::string::npos);
}

TEST_F(BertDatasetTest, BlendsNeedWeights) {
  stored(folder_ / "a", toy_documents());
  stored(folder_ / "b", toy_documents());
  const auto build = [&](const BlendList& list, std::optional<int64_t> samples, double surplus) {
    return build_bert_examples(list, toy_tokens(), toy_config(), Split::train, samples, surplus);
  };
  const std::vector<std::string> both = {folder_ / "a", folder_ / "b"};
  EXPECT_NE(error_of([&] { build({both, {}}, 10, 0); }).find("without weights"), std::string::npos);
  EXPECT_NE(error_of([&] { build({both, {1, 2}}, {}, 0); }).find("without a number"),
            std::string::npos);
  const auto blend = build({both, {1, 3}}, 40, 0.1);
  EXPECT_EQ(blend->size(), 40);
  const auto alone = build({{both[1]}, {}}, share_of_blend(40, 0.75, 0.1), 0);
  BertExample first, second;
  blend->read(0, first);
  alone->read(0, second);  // the heavier part goes first
  EXPECT_EQ(first.tokens, second.tokens);
}

tokenizers::Tokenizer bpe_with(std::vector<std::string> special) {
  tokenizers::BpeTrainerOptions options;
  options.vocabulary_size = 300;
  options.special_tokens = std::move(special);
  tokenizers::BpeTrainer trainer(options);
  trainer.add("a text to learn from");
  return trainer.train();
}

TEST(BertTokensTest, NamesTokensThatTheTokenizerLacks) {
  const std::string error = error_of([&] { bert_tokens(bpe_with({"[CLS]", "[PAD]"})); });
  EXPECT_NE(error.find("has no sep_token, mask_token: name it"), std::string::npos) << error;
}

// ESM's tokenizer has an end of sequence and no separator.
TEST(BertTokensTest, TheEndOfSequenceStandsForASeparator) {
  const tokenizers::Tokenizer tokenizer = bpe_with({"[CLS]", "[PAD]", "[MASK]", "</s>"});
  EXPECT_EQ(bert_tokens(tokenizer).sep, tokenizer.token_id("</s>"));
}

TEST(BertTokensTest, ReadsAVocabularyOfWordPieces) {
  const BertTokens tokens =
      bert_tokens(tokenizers::Tokenizer::load(golden("bert_dataset/data/wordpiece")));
  EXPECT_EQ(tokens.cls, 6);
  EXPECT_EQ(tokens.sep, 7);
  EXPECT_EQ(tokens.mask, 8);
  EXPECT_EQ(tokens.pad, 0);
  EXPECT_FALSE(tokens.pad_is_ambiguous());
  EXPECT_EQ(tokens.vocabulary_size(), 327);
  EXPECT_EQ(std::ranges::count(tokens.special, true), 5);
  EXPECT_GT(std::ranges::count(tokens.continues, true), 10);
}

}  // namespace
}  // namespace megatron::data
