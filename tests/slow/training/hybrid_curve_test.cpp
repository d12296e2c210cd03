// A hybrid of state spaces, attention and MLPs beside a dense model of as many parameters, 40M, on
// the same tokens.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <numeric>

#include "base/files.h"
#include "dist/training/runs.h"
#include "slow/training/manual_pages.h"

namespace megatron::training::hybrid_curve_test {
namespace {

constexpr int64_t kSteps = 400;
constexpr size_t kLast = 50;

settings::TrainSettings run_of(const TemporaryDirectory& folder, const std::string& prefix,
                               const std::string& name) {
  settings::TrainSettings s;
  s.shape.hidden_size = 512;
  s.shape.num_attention_heads = 8;
  s.shape.group_query_attention = true;
  s.shape.num_query_groups = 2;
  s.shape.normalization = nn::Normalization::rms_norm;
  s.shape.add_bias_linear = false;
  s.shape.hidden_dropout = s.shape.attention_dropout = 0;
  s.batch.seq_length = 512;
  s.batch.micro_batch_size = s.batch.global_batch_size = 8;
  s.batch.train_iters = kSteps;
  s.precision.bf16 = true;
  s.optimizer.lr = 1e-3;
  s.optimizer.min_lr = 1e-4;
  s.optimizer.lr_decay_style = optim::DecayStyle::cosine;
  s.optimizer.lr_warmup_iters = 50;
  s.optimizer.weight_decay = 0.1;
  s.optimizer.config.adam_beta2 = 0.95;
  s.data.data_path = {prefix};
  s.data.tokenizer_model = folder / "tokenizer";
  s.runtime.ranks = 1;
  s.checkpoint.save = folder / name;
  s.checkpoint.save_optimizer = false;
  return s;
}

TEST(Hybrid, LearnsAsADenseModelDoes) {
  const TemporaryDirectory folder;
  if (!fetch_manual_pages(folder / "packages")) GTEST_SKIP() << kNoManualPages;
  const std::string prefix = tokenized_manual_pages(folder, 8192);
  const settings::TrainSettings dense =
      with_flags(run_of(folder, prefix, "dense"),
                 "--num-layers 12 --ffn-hidden-size 1536 --swiglu --position-embedding-type rope");
  const settings::TrainSettings hybrid = with_flags(
      run_of(folder, prefix, "hybrid"),
      "--hybrid-layer-pattern M-M-M*-M-M-M*-M-M-M- --ffn-hidden-size 2048 --squared-relu "
      "--position-embedding-type none --mamba-state-dim 64 --mamba-head-dim 64 --mamba-num-groups "
      "1");
  const auto parameters = [](const settings::TrainSettings& s) {
    models::ModelFlags flags = s.shape;
    flags.vocab_size = 8192;
    return static_cast<double>(models::model_from_flags(flags, 512)->parameter_count());
  };
  fmt::print("dense {:.1f}M parameters, hybrid {:.1f}M\n", parameters(dense) / 1e6,
             parameters(hybrid) / 1e6);
  EXPECT_NEAR(parameters(dense), 40e6, 2e6);
  EXPECT_NEAR(parameters(hybrid) / parameters(dense), 1, 0.05);
  const auto trained = [](const settings::TrainSettings& s) {
    const std::vector<double> all = train_losses(s);
    return std::accumulate(all.end() - kLast, all.end(), 0.0) / kLast;
  };
  const double one = trained(dense), other = trained(hybrid);
  fmt::print("mean loss of the last {} of {} steps: dense {:.4f}, hybrid {:.4f}, {:+.2f}%\n", kLast,
             kSteps, one, other, 100 * (other / one - 1));
  EXPECT_LT(one, 5);
  EXPECT_LT(other / one, 1.02) << "hybrids of this kind are no worse than dense models";

  const std::string page = folder / "both.html",
                    command = MEGATRON_BINARY " report " + (folder / "dense") + " " +
                              (folder / "hybrid") + " --output " + page + " >" + (folder / "log");
  ASSERT_EQ(std::system(command.c_str()), 0) << read_file(folder / "log");
  for (const char* part : {"dense", "hybrid", "hybrid-layer-pattern"})
    EXPECT_NE(read_file(page).find(part), std::string::npos) << part;
}

}  // namespace
}  // namespace megatron::training::hybrid_curve_test
