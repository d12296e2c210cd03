// Evaluation of a set that does not divide evenly among ranks, and the logged time that ranks
// waited for one another.
#include "dist/training/runs.h"

namespace megatron::training {
namespace {

double validation_loss(const std::string& flags) {
  const TemporaryDirectory place;
  const auto result = run(with_flags(
      deep_gpt2(), "--mock-data false --vocab-size 2500 --data-path " MEGATRON_GOLDEN
                   "/indexed/preprocess/bpe2k_eod_text_document --train-iters 1 --split 90,10,0 "
                   "--full-validation --eval-interval 1 --data-cache-path " +
                       place / "cache" + " " + flags));
  EXPECT_GT(result.validation_loss, 0);
  return result.validation_loss;
}

// Parameters are gathered in every pass, so all ranks must make the same number of passes.
TEST(UnevenEvaluation, RanksThatGatherParametersMakeAsManyPasses) {
  const std::string zero_3 =
      "--ranks 2 --data-parallel-sharding-strategy optim_grads_params --overlap-grad-reduce "
      "--overlap-param-gather ";
  const double expected = validation_loss("--ranks 2 ");
  for (const int together : {1, 3, 5, 7}) {
    const std::string sizes = fmt::format("--eval-micro-batch-size {} --eval-global-batch-size {}",
                                          together, 2 * together);
    EXPECT_NEAR(validation_loss(zero_3 + sizes), expected, 1e-5) << sizes;
  }
}

TEST(CommunicationWait, IsThatOfAllAxes) {
  for (const char* flags :
       {"--ranks 2", "--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 2"}) {
    const TrainResult result = run(with_flags(deep_gpt2(), flags));
    EXPECT_GT(result.iterations.back().communication_wait, 0) << flags;
  }
}

}  // namespace
}  // namespace megatron::training
