// More samples of sentences than were requested at first.
#include "data/sentence_samples.h"

#include <set>

#include "data/bert_dataset.h"
#include "support.h"

namespace megatron::data {
namespace {

SentenceSamples samples_of(int64_t samples, int64_t extended = 0) {
  return {std::make_shared<const IndexedDataset>(golden("bert_dataset/data/docs60")),
          {.samples = samples, .extended = extended, .tokens = 40, .seed = 7}};
}

std::array<int64_t, 3> row_of(const SentenceSamples& set, int64_t k) {
  const auto row = set.row(k);
  return {row.first, row.end, row.target};
}

TEST(SentenceSamples, AnExtensionBeginsWithTheSamplesOfBefore) {
  const SentenceSamples base = samples_of(10);
  const int64_t epoch = base.size();
  const SentenceSamples twice = samples_of(10, epoch + 5), longer = samples_of(10, 5 * epoch);
  EXPECT_GE(twice.size(), epoch + 5);
  EXPECT_GE(longer.size(), 5 * epoch);
  for (int64_t k = 0; k < epoch; ++k) EXPECT_EQ(row_of(twice, k), row_of(base, k));
  for (int64_t k = 0; k < twice.size(); ++k) EXPECT_EQ(row_of(longer, k), row_of(twice, k));
  // Each further pass has an order of its own, and every document.
  int64_t same = 0;
  std::set<int64_t> first, again;
  for (int64_t k = 0; k < epoch; ++k) {
    first.insert(row_of(base, k)[0]);
    again.insert(row_of(longer, epoch + k)[0]);
    same += row_of(longer, epoch + k) == row_of(base, k);
  }
  EXPECT_LT(4 * same, epoch);
  EXPECT_GT(again.size(), first.size() / 2);
  EXPECT_NE(error_of([&] { longer.row(longer.size()); }), "");
}

TEST(SentenceSamples, OtherEpochsAreAnotherOrder) {
  const SentenceSamples set = samples_of(10);
  EXPECT_TRUE(set.keeps_order(1));
  EXPECT_TRUE(set.keeps_order(set.size()));
  EXPECT_FALSE(set.keeps_order(set.size() + 1));
  EXPECT_NE(row_of(samples_of(set.size() + 1), 0), row_of(set, 0));
  const SentenceSamples two = samples_of(set.size() + 1);
  EXPECT_FALSE(two.keeps_order(set.size()));
  EXPECT_TRUE(two.keeps_order(two.size()));
  EXPECT_TRUE(samples_of(10, 5 * set.size()).keeps_order(set.size()));
}

TEST(SentenceSamples, ABlendIsExtendedInItsParts) {
  const BlendList list{{golden("bert_dataset/data/docs60"), golden("bert_dataset/data/docs60")},
                       {0.7, 0.3}};
  const BertTokens tokens = [] {
    const tokenizers::Tokenizer tokenizer =
        tokenizers::Tokenizer::load(golden("bert_dataset/data/wordpiece"));
    return bert_tokens(tokenizer);
  }();
  BertDatasetConfig config;
  config.sequence_length = 64;
  const auto build = [&](int64_t samples, int64_t extended) {
    return build_bert_examples(list, tokens, config, Split::train, samples, 0.005, extended);
  };
  const auto base = build(50, 0), longer = build(50, 600);
  ASSERT_GE(longer->size(), 600);
  BertExample a, b;
  for (int64_t k = 0; k < 50; ++k) {
    base->read(k, a);
    longer->read(k, b);
    EXPECT_EQ(a.tokens, b.tokens) << k;
  }
  for (const auto& set : {base, longer}) {
    EXPECT_TRUE(set->keeps_order(50));
    EXPECT_FALSE(set->keeps_order(600));
  }
}

}  // namespace
}  // namespace megatron::data
