// 200 steps of the quick start's run: bf16 learns as well as fp32.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <numeric>

#include "slow/training/manual_pages.h"

namespace megatron::training {
namespace {

// The recipe of ./quickstart, stopped after 200 of its 500 steps.
settings::TrainSettings quickstart_run(const std::string& prefix, const std::string& tokenizer,
                                       bool bf16) {
  settings::TrainSettings s;
  s.shape.num_layers = 4;
  s.shape.hidden_size = 256;
  s.shape.num_attention_heads = 8;
  s.shape.group_query_attention = true;
  s.shape.num_query_groups = 4;
  s.shape.position_embedding = models::PositionEmbedding::rope;
  s.shape.normalization = nn::Normalization::rms_norm;
  s.shape.swiglu = true;
  s.shape.add_bias_linear = false;
  s.shape.hidden_dropout = s.shape.attention_dropout = 0;
  s.batch.seq_length = 256;
  s.batch.micro_batch_size = 8;
  s.batch.global_batch_size = 16;
  s.batch.train_iters = 200;
  s.precision.bf16 = bf16;
  s.optimizer.lr = 3e-3;
  s.optimizer.min_lr = 3e-4;
  s.optimizer.lr_decay_style = optim::DecayStyle::cosine;
  s.optimizer.lr_decay_iters = 500;
  s.optimizer.lr_warmup_iters = 50;
  s.optimizer.weight_decay = 0.1;
  s.optimizer.config.adam_beta2 = 0.95;
  s.data.data_path = {prefix};
  s.data.tokenizer_model = tokenizer;
  s.runtime.ranks = 2;
  return s;
}

constexpr int kLast = 50;  // of 200 steps; over 20, runs that differ only by rounding diverge by 1%
double last_mean(const std::vector<double>& losses) {
  return std::accumulate(losses.end() - kLast, losses.end(), 0.0) / kLast;
}

TEST(QuickStart, Bf16LossOf200StepsIsNotHalfAPercentAboveFp32) {
  const TemporaryDirectory folder;
  if (!fetch_manual_pages(folder / "packages")) GTEST_SKIP() << kNoManualPages;
  const std::string prefix = tokenized_manual_pages(folder, 8192);
  const double fp32 = last_mean(train_losses(quickstart_run(prefix, folder / "tokenizer", false)));
  const double bf16 = last_mean(train_losses(quickstart_run(prefix, folder / "tokenizer", true)));
  fmt::print("mean loss of the last {} of 200 steps: fp32 {:.4f}, bf16 {:.4f}, {:+.2f}%\n", kLast,
             fp32, bf16, 100 * (bf16 / fp32 - 1));
  EXPECT_LT(fp32, 4.5);
  EXPECT_LT(bf16 / fp32, 1.005) << bf16 << " against " << fp32;
  EXPECT_GT(bf16 / fp32, 0.97) << "another run: " << bf16 << " against " << fp32;
}

}  // namespace
}  // namespace megatron::training
