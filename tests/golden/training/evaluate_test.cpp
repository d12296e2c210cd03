#include "training/evaluate.h"

#include <gtest/gtest.h>

#include <tuple>

#include "base/error.h"
#include "comm/threads.h"
#include "data/indexed_dataset.h"
#include "golden/training/support.h"
#include "training/trained_model.h"

namespace megatron::training {
namespace {

// Nine tokens: two sequences of 4 with the labels 1 0 1 0 and 1 0 1 2.
corpus::Corpus nine_tokens(const TemporaryDirectory& folder, int64_t vocabulary) {
  const std::vector<int32_t> tokens = {0, 1, 0, 1, 0, 1, 0, 1, 2};
  const std::string prefix = folder / "nine";
  if (!data::indexed_dataset_exists(prefix)) {
    data::IndexedDatasetBuilder builder(prefix, DType::u16);
    builder.add_item(std::span<const int32_t>(tokens));
    builder.end_document();
    builder.finalize();
  }
  settings::DataSettings settings;
  settings.data_path = {prefix};
  settings.split = "1,0,0";
  return corpus::open_corpus(settings, corpus::open_vocabulary(settings, vocabulary), 4, 1, {});
}

TEST(UnigramEntropy, ByHand) {
  const TemporaryDirectory folder;
  const corpus::Corpus corpus = nine_tokens(folder, 3);
  const data::Dataset& set = corpus.set(data::Split::train);
  ASSERT_EQ(set.size(), 2);
  const double expected =
      -(4.0 / 8 * std::log(4.0 / 8) + 3.0 / 8 * std::log(3.0 / 8) + 1.0 / 8 * std::log(1.0 / 8));
  EXPECT_NEAR(unigram_entropy(set, 0, 2, 4), expected, 1e-12);
}

// The error comes before any data is read.
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

// A set that is not needed is not opened: nine tokens in one document are too few for three sets.
TEST(Corpus, OpensOnlyWhatIsAskedFor) {
  const TemporaryDirectory folder;
  nine_tokens(folder, 3);
  settings::DataSettings settings;
  settings.data_path = {folder / "nine"};
  const corpus::Vocabulary vocabulary = corpus::open_vocabulary(settings, 3);
  const corpus::Corpus corpus = corpus::open_corpus(settings, vocabulary, 4, 1, {2, 0, 0});
  EXPECT_EQ(corpus.set(data::Split::train).size(), 2);
  EXPECT_THROW(corpus.set(data::Split::valid), Error);
  EXPECT_THROW(corpus::open_corpus(settings, vocabulary, 4, 1, {2, 2, 0}), Error);
}

// A set limited to its first samples.
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

struct Division {
  int ranks = 1;
  int64_t micro_batch = 1;
  int threads = 1;
  bool all = false;  // evaluates them as a whole set of `count` samples
};

// Synthetic samples and the shape of a model.
struct Tiny {
  Tiny() {
    const settings::TrainSettings s = tiny_llama();
    definition = models::model_from_flags(s.shape, 32);
    corpus = corpus::open_corpus(s.data, corpus::open_vocabulary(s.data, 97), 32, 1, {0, 9, 0});
  }
  const data::Dataset& set() const { return corpus.set(data::Split::valid); }

  models::Model definition;
  corpus::Corpus corpus;
};

LossSum evaluate_with(const Tiny& tiny, DeviceKind device, DType type, int64_t count,
                      const Division& division) {
  std::vector<LossSum> sums(static_cast<size_t>(division.ranks));
  comm::run_ranks(division.ranks, [&](comm::Group& world) {
    Runtime runtime({device, 0}, division.threads);
    TrainedModel model(tiny.definition, type, 1, {}, world, runtime, {});
    model.initialize(1);
    const FirstOf set(tiny.set(), count);
    sums[static_cast<size_t>(world.rank())] =
        division.all ? evaluate_all(model.loss_pass, set, division.micro_batch, 32)
                     : evaluate(model.loss_pass, set, 0, count, division.micro_batch, 32);
  });
  for (const LossSum& sum : sums) {
    EXPECT_EQ(sum.sum, sums[0].sum);
    EXPECT_EQ(sum.tokens, static_cast<double>(count * 32));
  }
  return sums[0];
}

class Evaluate : public ::testing::TestWithParam<std::tuple<DeviceKind, DType>> {};

TEST_P(Evaluate, EveryDivisionGivesTheSameBits) {
  const auto [device, type] = GetParam();
  const Tiny tiny;
  for (const int64_t count : {1, 7}) {
    const LossSum one = evaluate_with(tiny, device, type, count, {});
    EXPECT_NEAR(one.mean(), std::log(97), 0.1);
    for (const int ranks : {1, 2, 3}) {
      for (const int64_t micro_batch : {1, 3, 4}) {
        for (const bool all : {false, true}) {
          const LossSum other = evaluate_with(
              tiny, device, type, count, {.ranks = ranks, .micro_batch = micro_batch, .all = all});
          EXPECT_EQ(other.sum, one.sum)
              << count << " samples, " << ranks << " ranks, micro-batch " << micro_batch;
        }
      }
    }
  }
  EXPECT_EQ(evaluate_with(tiny, device, type, 7, {.micro_batch = 4, .threads = 3}).sum,
            evaluate_with(tiny, device, type, 7, {}).sum);
}

INSTANTIATE_TEST_SUITE_P(Devices, Evaluate,
                         ::testing::Combine(::testing::Values(DeviceKind::reference,
                                                              DeviceKind::cpu),
                                            ::testing::Values(DType::f32, DType::bf16)),
                         [](const auto& info) {
                           return std::string(name(std::get<0>(info.param))) + "_" +
                                  std::string(name(std::get<1>(info.param)));
                         });

// If a set is evaluated in several pieces, their sums are added in the order of the samples.
TEST(EvaluateSamples, AndTheirSum) {
  const Tiny tiny;
  const data::Dataset& set = tiny.set();
  comm::run_ranks(2, [&](comm::Group& world) {
    Runtime runtime({DeviceKind::cpu, 0}, 1);
    TrainedModel model(tiny.definition, DType::f32, 1, {}, world, runtime, {});
    model.initialize(1);
    LossPass& pass = model.loss_pass;
    const std::vector<int64_t> indices = {8, 0, 3, 3, 5};
    const auto losses = evaluate_samples(pass, set, indices, 2, 32);
    ASSERT_EQ(losses.size(), indices.size());
    EXPECT_EQ(losses[2].sum, losses[3].sum);
    for (size_t i = 0; i < indices.size(); ++i) {
      const LossSum alone = evaluate(pass, set, indices[i], 1, 1, 32);
      EXPECT_EQ(losses[i].sum, alone.sum) << i;
    }
    EXPECT_TRUE(evaluate_samples(pass, set, {}, 2, 32).empty());
    EXPECT_EQ(evaluate(pass, set, 3, 1, 4, 32).sum + evaluate(pass, set, 4, 1, 4, 32).sum,
              evaluate(pass, set, 3, 2, 4, 32).sum);
  });
}

}  // namespace
}  // namespace megatron::training
