#include "training/evaluate.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/threads.h"
#include "data/indexed_dataset.h"
#include "golden/training/support.h"

namespace megatron::training {
namespace {

// Nine tokens: two sequences of 4 whose labels are 1 0 1 0 and 1 0 1 2.
Corpus nine_tokens(const TemporaryDirectory& folder, int64_t vocabulary) {
  const std::vector<int32_t> tokens = {0, 1, 0, 1, 0, 1, 0, 1, 2};
  const std::string prefix = folder / "nine";
  if (!data::indexed_dataset_exists(prefix)) {
    data::IndexedDatasetBuilder builder(prefix, DType::u16);
    builder.add_item(std::span<const int32_t>(tokens));
    builder.end_document();
    builder.finalize();
  }
  DataSettings settings;
  settings.data_path = {prefix};
  settings.split = "1,0,0";
  return open_corpus(settings, open_vocabulary(settings, vocabulary), 4, 1, {});
}

TEST(UnigramEntropy, ByHand) {
  const TemporaryDirectory folder;
  const Corpus corpus = nine_tokens(folder, 3);
  const data::Dataset& set = corpus.set(data::Split::train);
  ASSERT_EQ(set.size(), 2);
  const double expected =
      -(4.0 / 8 * std::log(4.0 / 8) + 3.0 / 8 * std::log(3.0 / 8) + 1.0 / 8 * std::log(1.0 / 8));
  EXPECT_NEAR(unigram_entropy(set, 0, 2, 4), expected, 1e-12);
}

// Before anything is read of it.
TEST(Corpus, RefusesTokensBeyondTheVocabulary) {
  const TemporaryDirectory folder;
  try {
    nine_tokens(folder, 2);
    FAIL();
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("token id 2"), std::string::npos) << text;
    EXPECT_NE(text.find("--vocab-size"), std::string::npos) << text;
  }
}

// A set that nobody asks for is not opened: nine tokens in one document cannot fill three.
TEST(Corpus, OpensOnlyWhatIsAskedFor) {
  const TemporaryDirectory folder;
  nine_tokens(folder, 3);
  DataSettings settings;
  settings.data_path = {folder / "nine"};
  const Vocabulary vocabulary = open_vocabulary(settings, 3);
  const Corpus corpus = open_corpus(settings, vocabulary, 4, 1, {2, 0, 0});
  EXPECT_EQ(corpus.set(data::Split::train).size(), 2);
  EXPECT_THROW(corpus.set(data::Split::valid), Error);
  EXPECT_THROW(open_corpus(settings, vocabulary, 4, 1, {2, 2, 0}), Error);
}

// The first samples of a set.
class FirstOf final : public data::Dataset {
 public:
  FirstOf(const data::Dataset& set, int64_t count) : set_(set), count_(count) {}
  int64_t size() const override { return count_; }
  void read(int64_t k, data::Sample& sample) const override { set_.read(k, sample); }
  void read_filler(data::Sample& sample) const override { set_.read_filler(sample); }

 private:
  const data::Dataset& set_;
  int64_t count_;
};

// all: as a whole set of `count` samples.
LossSum evaluate_with(int ranks, int64_t micro_batch, int64_t count, bool all = false) {
  TrainSettings s = tiny_llama();
  models::GptConfig config = s.shape.to_config(32);
  config.finalize();
  const Vocabulary vocabulary = open_vocabulary(s.data, 97);
  const Corpus corpus = open_corpus(s.data, vocabulary, 32, 1, {count, count, count});
  std::vector<LossSum> sums(static_cast<size_t>(ranks));
  comm::run_ranks(ranks, [&](comm::Group& world) {
    Runtime runtime({DeviceKind::cpu, 0}, 1);
    models::GptModel model(config, runtime, DType::f32, 1);
    model.initialize(1);
    const StepOptions options{.vocabulary = 97, .positions = 32};
    const FirstOf set(corpus.set(data::Split::valid), count);
    sums[static_cast<size_t>(world.rank())] =
        all ? evaluate_all(model, DType::f32, set, micro_batch, 32, world, runtime, options)
            : evaluate(model, DType::f32, set, 0, count, micro_batch, 32, world, runtime, options);
  });
  for (const LossSum& sum : sums) {
    EXPECT_EQ(sum.sum, sums[0].sum);
    EXPECT_EQ(sum.tokens, static_cast<double>(count * 32));
  }
  return sums[0];
}

TEST(Evaluate, RanksAndMicroBatchesGiveTheSameSum) {
  for (const int64_t count : {1, 7, 8}) {
    const LossSum one = evaluate_with(1, 2, count);
    EXPECT_NEAR(one.mean(), std::log(97), 0.1);
    EXPECT_NEAR(evaluate_with(2, 2, count).sum / one.sum, 1, 1e-13) << count;
    EXPECT_NEAR(evaluate_with(4, 2, count).sum / one.sum, 1, 1e-13) << count;
    EXPECT_NEAR(evaluate_with(1, 8, count).sum / one.sum, 1, 1e-6) << count;
    for (const int ranks : {1, 2, 4})
      EXPECT_NEAR(evaluate_with(ranks, 2, count, true).sum / one.sum, 1, 1e-6) << count;
  }
}

}  // namespace
}  // namespace megatron::training
