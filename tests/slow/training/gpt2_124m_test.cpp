// GPT-2 124M on Debian's manual pages: the losses of twenty steps match stored values.
#include <gtest/gtest.h>

#include "base/files.h"
#include "base/json.h"
#include "slow/training/manual_pages.h"
#include "slow/training/md5.h"

namespace megatron::training {
namespace {

const std::string kCurve = MEGATRON_TEST_SOURCES "/slow/training/gpt2_124m_curve.json";

// The corpus is too small to learn GPT-2's 50257 tokens: the model's table has all of them, and the
// text uses only these.
constexpr int64_t kVocabulary = 16384;

settings::TrainSettings gpt2_124m(const std::string& prefix, const std::string& tokenizer) {
  settings::TrainSettings s;
  s.shape.num_layers = 12;
  s.shape.hidden_size = 768;
  s.shape.num_attention_heads = 12;
  s.shape.vocab_size = 50257;
  s.shape.hidden_dropout = s.shape.attention_dropout = 0;
  s.batch.seq_length = 1024;
  s.batch.micro_batch_size = 2;
  s.batch.train_iters = 20;
  s.optimizer.lr = 6e-4;
  s.optimizer.lr_warmup_iters = 10;
  s.optimizer.lr_decay_style = optim::DecayStyle::constant;
  s.data.data_path = {prefix};
  s.data.tokenizer_model = tokenizer;
  s.data.split = "1,0,0";
  s.log.log_interval = 1;
  return s;
}

TEST(Gpt2, TwentyStepsOnManualPagesFollowTheStoredCurve) {
  const TemporaryDirectory folder;
  if (!fetch_manual_pages(folder / "packages")) GTEST_SKIP() << kNoManualPages;
  const std::string prefix = tokenized_manual_pages(folder, kVocabulary);
  const std::string checksum = md5_hex(read_file(prefix + ".bin"));

  const bool stored = std::filesystem::exists(kCurve);
  const Json curve = stored ? Json::read(kCurve) : Json();
  if (stored && curve["corpus_md5"].as_string() != checksum) {
    GTEST_SKIP() << "the curve belongs to a corpus with md5 " << curve["corpus_md5"].as_string()
                 << ", and the packages and tokenizer of this machine give " << checksum;
  }
  const std::vector<double> found = train_losses(gpt2_124m(prefix, folder / "tokenizer"));
  ASSERT_EQ(found.size(), 20u);
  if (!stored) {
    Json written(Json::Object{});
    written.set("corpus_md5", checksum);
    written.set("losses", Json::Array(found.begin(), found.end()));
    FAIL() << kCurve << " does not exist; if this curve is right, store it there:\n"
           << written.dump(1);
  }
  const auto& losses = curve["losses"].as_array();
  ASSERT_EQ(losses.size(), found.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i] / losses[i].as_number(), 1, 1e-3) << "step " << i + 1 << ": " << found[i];
  }
}

}  // namespace
}  // namespace megatron::training
