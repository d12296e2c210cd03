// Experts are worth their memory. Two models compute equally much per token; the one with eight
// experts of half the width, two per token, has the lower loss after the same number of steps.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "base/files.h"
#include "base/json.h"
#include "slow/training/manual_pages.h"

namespace megatron::training {
namespace {

settings::TrainSettings run_of(const TemporaryDirectory& folder, const std::string& prefix,
                               const std::string& name) {
  settings::TrainSettings s;
  s.shape.num_layers = 3;
  s.shape.hidden_size = 128;
  s.shape.num_attention_heads = 4;
  s.shape.position_embedding = models::PositionEmbedding::rope;
  s.shape.normalization = nn::Normalization::rms_norm;
  s.shape.swiglu = true;
  s.shape.add_bias_linear = false;
  s.shape.hidden_dropout = s.shape.attention_dropout = 0;
  s.shape.ffn_hidden_size = 256;
  s.batch.seq_length = 256;
  s.batch.micro_batch_size = 4;
  s.batch.global_batch_size = 4;
  s.batch.train_iters = 5000;
  s.precision.bf16 = true;
  s.optimizer.lr = 4e-3;
  s.optimizer.min_lr = 4e-4;
  s.optimizer.lr_decay_style = optim::DecayStyle::cosine;
  s.optimizer.lr_warmup_iters = 200;
  s.optimizer.weight_decay = 0.1;
  s.optimizer.config.adam_beta2 = 0.95;
  s.data.data_path = {prefix};
  s.data.split = "95,5,0";
  s.data.tokenizer_model = folder / "tokenizer";
  s.run.eval_interval = 1000;
  s.run.eval_iters = 40;
  s.log.log_interval = 50;
  s.checkpoint.save = folder / name;
  return s;
}

struct Losses {
  double training = 0, validation = 0;  // mean of the last 500 steps; after the last
};
Losses train_and_read(const settings::TrainSettings& s) {
  const TrainResult result = train(s, {.peak = 1e12});
  constexpr size_t kLast = 500;
  Losses losses;
  for (size_t i = result.iterations.size() - kLast; i < result.iterations.size(); ++i)
    losses.training += result.iterations[i].loss / kLast;
  std::istringstream lines(read_file(*s.checkpoint.save + "/log.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const Json record = Json::parse(line);
    if (record["type"].as_string() == "validation") losses.validation = record["loss"].as_number();
  }
  return losses;
}

TEST(Experts, LearnMoreThanADenseModelThatComputesAsMuch) {
  const TemporaryDirectory folder;
  if (!fetch_manual_pages(folder / "packages")) GTEST_SKIP() << kNoManualPages;
  const std::string prefix = tokenized_manual_pages(folder, 4096);
  const settings::TrainSettings dense = run_of(folder, prefix, "dense");
  settings::TrainSettings experts = run_of(folder, prefix, "experts");
  experts.shape.moe.num_experts = 8;
  experts.shape.moe.topk = 2;
  experts.shape.moe.ffn_hidden_size = 128;
  experts.shape.moe.topk_scaling_factor = 2;
  experts.shape.moe.aux_loss_coeff = {"0.01"};
  const auto flops = [](const settings::TrainSettings& s) {
    models::ModelFlags flags = s.shape;
    flags.vocab_size = 4096;
    return models::model_from_flags(flags, 256)->training_flops(256);
  };
  EXPECT_NEAR(flops(experts) / flops(dense), 1, 0.01);  // the router makes the difference

  const Losses one = train_and_read(dense), eight = train_and_read(experts);
  fmt::print(
      "dense: training {:.3f}, validation {:.3f}; experts: training {:.3f}, validation "
      "{:.3f}\n",
      one.training, one.validation, eight.training, eight.validation);
  EXPECT_LT(eight.training, one.training - 0.03);
  EXPECT_LT(eight.validation, one.validation);

  const std::string page = folder / "both.html",
                    command = MEGATRON_BINARY " report " + folder / "dense" + " " +
                              folder / "experts" + " --output " + page + " >" + folder / "report";
  ASSERT_EQ(std::system(command.c_str()), 0) << read_file(folder / "report");
  const std::string html = read_file(page);
  for (const char* part : {"dense", "experts", "moe-router-topk"})
    EXPECT_NE(html.find(part), std::string::npos) << part;
}

}  // namespace
}  // namespace megatron::training
