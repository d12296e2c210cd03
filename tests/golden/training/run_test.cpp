// Whole runs that must give equal losses.
#include <gtest/gtest.h>

#include "amx_emulator.h"
#include "base/error.h"
#include "base/files.h"
#include "base/tolerances.h"
#include "golden/training/support.h"
#include "plan/machine_rates.h"
#include "tokenizers/tokenizer.h"

namespace megatron::training {
namespace {

TEST(Run, ACheckpointOpensWithTheTokenizerOfTheRun) {
  const TemporaryDirectory folder;
  write_file(folder / "v.json", R"({"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3})");
  write_file(folder / "m.txt", "a b\n");
  settings::TrainSettings s = tiny_gpt2();
  s.shape.vocab_size.reset();
  s.batch.train_iters = 1;
  s.data.tokenizer_type = "GPT2BPETokenizer";
  s.data.vocab_file = folder / "v.json";
  s.data.merge_file = folder / "m.txt";
  s.checkpoint.save = folder / "named";
  const auto named = tokenizers::Tokenizer::load(train(s).saved);
  EXPECT_EQ(named.encode("abb<|endoftext|>"), (std::vector<int32_t>{2, 1, 3}));
  EXPECT_EQ(named.eod(), 3);

  const std::string directory = vectors("tokenizers/trained/llama3");
  s.data.tokenizer_type.reset();
  s.data.vocab_file.reset();
  s.data.merge_file.reset();
  s.data.tokenizer_model = directory;
  s.checkpoint.save = folder / "copied";
  EXPECT_EQ(read_file(train(s).saved + "/tokenizer.json"),
            read_file(directory + "/tokenizer.json"));
  s.data.tokenizer_special_tokens = {"<new>"};
  s.checkpoint.save = folder / "added";
  EXPECT_TRUE(tokenizers::Tokenizer::load(train(s).saved).token_id("<new>"));
}

TEST(Run, LossFalls) {
  settings::TrainSettings s = tiny_llama();
  s.batch.train_iters = 30;
  const auto l = train_losses(s);
  EXPECT_NEAR(l.front(), std::log(97), 0.1);
  EXPECT_LT(l.back(), 0.7 * l.front());
}

TEST(Run, OneSeedGivesTheSameBits) {
  for (const settings::TrainSettings& s : {tiny_llama(), tiny_gpt2()})
    EXPECT_TRUE(same_bits(train_losses(s), train_losses(s)));
}

TEST(Run, AnotherSeedGivesOtherLosses) {
  settings::TrainSettings s = tiny_llama();
  const auto before = train_losses(s);
  s.runtime.seed = 4321;
  EXPECT_FALSE(same_bits(before, train_losses(s)));
}

// The work of `bench step` between the steps must not affect them.
TEST(Run, SamplingThePeakBetweenStepsChangesNoBit) {
  for (const bool bf16 : {false, true}) {
    settings::TrainSettings s = tiny_llama();
    s.precision.bf16 = bf16;
    s.runtime.threads = 2;
    Runtime whole(s.runtime.device_value(), 2);
    plan::PeakMeter meter(whole, s.precision.type());
    int sampled = 0;
    TrainHooks hooks;
    hooks.after_step = [&](const IterationReport&) {
      meter.sample(0.01);
      ++sampled;
    };
    const auto bench = train_losses(s, hooks);
    EXPECT_EQ(sampled, 5);
    EXPECT_TRUE(same_bits(bench, train_losses(s)));
  }
}

void expect_any_ranks(settings::TrainSettings s) {
  const auto one = train_losses(s);
  for (const int64_t ranks : {1, 2, 4}) {
    for (const int64_t micro_batch : {1, 2, 8}) {
      if (8 % (ranks * micro_batch) != 0) continue;
      s.runtime.ranks = ranks;
      s.batch.micro_batch_size = micro_batch;
      EXPECT_LE(distance(train_losses(s), one), tolerance::kLayoutFp32)
          << ranks << " ranks, micro-batch " << micro_batch;
    }
  }
}

TEST(Run, RanksAndMicroBatchesOfALlamaAreEqualWithinRounding) { expect_any_ranks(tiny_llama()); }
TEST(Run, RanksAndMicroBatchesOfAGptAreEqualWithinRounding) { expect_any_ranks(tiny_gpt2()); }

TEST(Run, ThreadCountChangesNoBit) {
  for (const auto& [type, products] : kernels::cpu::types_and_ways()) {
    const kernels::cpu::UseBf16Products use(products);
    settings::TrainSettings s = tiny_llama();
    s.precision.bf16 = type == DType::bf16;
    const auto one = train_losses(s);
    for (const int64_t threads : {2, 3}) {
      s.runtime.threads = threads;
      EXPECT_TRUE(same_bits(train_losses(s), one)) << threads << " threads, " << str(products);
    }
  }
}

TEST(Run, RecomputeChangesNoBit) {
  for (settings::TrainSettings s : {tiny_llama(), tiny_gpt2()}) {
    s.shape.hidden_dropout = s.shape.attention_dropout = 0.1;
    const auto kept = train_losses(s);
    s.recompute.granularity = "full";
    EXPECT_TRUE(same_bits(train_losses(s), kept));
  }
}

// Megatron's mean over the micro-batches' means equals the mean over all tokens if every token
// counts.
TEST(Run, LossScopesAgreeWithoutMasks) {
  settings::TrainSettings s = tiny_llama();
  const auto per_token = train_losses(s);
  s.batch.per_token_loss = false;
  EXPECT_LE(distance(train_losses(s), per_token), tolerance::kLayoutFp32);
}

TEST(Run, DropoutDependsOnSamplesNotOnRanks) {
  for (settings::TrainSettings s : {tiny_gpt2(), tiny_llama()}) {
    const auto without = train_losses(s);
    s.shape.hidden_dropout = s.shape.attention_dropout = 0.2;
    const auto one = train_losses(s);
    EXPECT_GT(distance(one, without), 1e-4);
    EXPECT_TRUE(same_bits(train_losses(s), one));
    s.runtime.ranks = 2;
    EXPECT_LE(distance(train_losses(s), one), tolerance::kLayoutFp32);
    s.batch.micro_batch_size = 4;
    EXPECT_LE(distance(train_losses(s), one), tolerance::kLayoutFp32);
    s.runtime.seed = 99;
    EXPECT_GT(distance(train_losses(s), one), 1e-6);
  }
}

// 200 steps on text (200 documents in many scripts, tokenized by byte-level BPE with 2048 tokens).
TEST(Run, Bf16EndsWithinOnePercentOfFp32) {
  const TemporaryDirectory cache;
  settings::TrainSettings s = tiny_llama();
  s.shape.hidden_size = 64;
  s.shape.ffn_hidden_size = 192;
  s.shape.vocab_size = 2048;
  s.shape.untie = false;
  s.batch.seq_length = 64;
  s.batch.micro_batch_size = s.batch.global_batch_size = 8;
  s.batch.train_iters = 200;
  s.optimizer.lr = 1e-3;
  s.data.mock_data = false;
  s.data.data_path = {vectors("indexed/preprocess/bpe2k_eod_text_document")};
  s.data.split = "1,0,0";
  s.data.data_cache_path = cache / "index";
  s.runtime.threads = 2;
  const auto fp32 = train_losses(s);
  s.precision.bf16 = true;
  const auto bf16 = train_losses(s);
  const auto last = [](const std::vector<double>& l) {
    double sum = 0;
    for (size_t i = l.size() - 10; i < l.size(); ++i) sum += l[i] / 10;
    return sum;
  };
  EXPECT_LT(last(fp32), 0.75 * fp32.front());
  EXPECT_NEAR(last(bf16) / last(fp32), 1, 0.01);
  EXPECT_FALSE(same_bits(bf16, fp32));
}

TEST(Run, ADivergedRunStopsWithAnError) {
  settings::TrainSettings s = tiny_llama();
  s.optimizer.lr = 1e30;
  s.optimizer.config.method = optim::Method::sgd;
  s.optimizer.config.clip_grad = 0;
  EXPECT_THROW(train(s), Error);
}

}  // namespace
}  // namespace megatron::training
