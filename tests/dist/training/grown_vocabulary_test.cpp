// Runs that start from a directory whose model has fewer tokens than --vocab-size.
#include "dist/training/runs.h"
#include "unit/models/family_models.h"

namespace megatron::training {
namespace {

constexpr int64_t kTokens = 171;

// A step that changes nothing, so the saved weights are the initial ones.
settings::TrainSettings grown(const std::string& family, const std::string& save) {
  settings::TrainSettings s = tiny_llama();
  s.shape = {};
  s.shape.vocab_size = kTokens;
  s.run.model = testing::family_directory(family);
  s.checkpoint.finetune = true;
  s.batch.seq_length = 16;
  s.batch.micro_batch_size = 1;
  s.batch.global_batch_size = 2;
  s.batch.train_iters = 1;
  s.optimizer.lr = 1e-35;
  s.runtime.ranks.reset();
  s.checkpoint.save = save;
  return s;
}

class GrownVocabulary : public ::testing::TestWithParam<const char*> {};

TEST_P(GrownVocabulary, HasTheSameNewRowsInEveryLayout) {
  const TemporaryDirectory folder;
  const std::string family = GetParam();
  const Tensors before = saved_tensors(testing::family_directory(family)).weights;
  const std::string saved = run(grown(family, folder / "one")).saved;
  const Tensors one = saved_tensors(saved).weights;
  ASSERT_EQ(one.size(), before.size());
  EXPECT_EQ(models::model_from_directory(saved)->vocab_size(), kTokens);
  int tables = 0;
  for (const auto& [name, values] : before) {
    const std::vector<double>& now = one.at(name);
    if (now.size() == values.size()) {
      EXPECT_EQ(now, values) << name;
      continue;
    }
    ++tables;
    const size_t hidden = now.size() / kTokens;
    EXPECT_TRUE(std::equal(values.begin(), values.end(), now.begin())) << name;
    for (size_t row = values.size() / hidden; row < kTokens; ++row)
      EXPECT_GT(std::abs(now[row * hidden]), 0) << name << " row " << row;
  }
  EXPECT_EQ(tables, models::model_from_directory(saved)->tied_output() ? 1 : 2);
  int count = 0;
  for (const std::string flags :
       {"--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 3",
        "--ranks 2 --data-parallel-sharding-strategy optim_grads_params"})
    EXPECT_EQ(
        saved_tensors(run(with_flags(grown(family, folder / std::to_string(count++)), flags)).saved)
            .weights,
        one)
        << flags;
}

INSTANTIATE_TEST_SUITE_P(Families, GrownVocabulary, ::testing::Values("llama", "qwen3"));

TEST(GrownVocabularyErrors, FewerTokensAreRefused) {
  settings::TrainSettings s = grown("llama", "");
  s.checkpoint.save.reset();
  s.shape.vocab_size = 100;
  try {
    run(s);
    FAIL() << "100 tokens were accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("--vocab-size is 100, but the model in"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace megatron::training
