// Adapters (--lora-rank) trained with --device cuda, on the CUDA plugin compiled for the CPU.
#include "base/tolerances.h"
#include "cuda/cli/training_runs.h"

namespace megatron::testing::adapter_test {
namespace {

std::vector<Json> steps(const Workplace& place, const std::string& device, const std::string& flags,
                        std::string* printed = nullptr) {
  const Outcome r = place.run(
      words("train --finetune --mock-data --tokenizer-type NullTokenizer --seq-length 32 "
            "--micro-batch-size 2 --global-batch-size 4 --lr 1e-2 --train-iters 3 --threads 1 "
            "--log-interval 1 --lora-rank 3 --lora-alpha 5 --lora-alpha-pattern v_proj=2 --model " +
            vectors("post_training/models/policy") + " --device " + device + " --log-jsonl " +
            device + ".jsonl " + flags));
  EXPECT_EQ(r.code, 0) << r.out << r.err;
  if (printed != nullptr) *printed = r.out + r.err;
  return steps_of(place / (device + ".jsonl"));
}

TEST(CudaAdapters, HaveTheLossesOfTheCpu) {
  for (const std::string flags :
       {"", "--tensor-model-parallel-size 2 --sequence-parallel --bf16"}) {
    SCOPED_TRACE(flags);
    const Workplace place;
    const std::vector<Json> cpu = steps(place, "cpu", flags), cuda = steps(place, "cuda", flags);
    ASSERT_EQ(cpu.size(), 3u);
    ASSERT_EQ(cuda.size(), 3u);
    const double bound =
        flags.empty() ? tolerance::kCudaLossRelative : tolerance::kCudaNarrowLossRelative;
    for (size_t i = 0; i < cpu.size(); ++i) {
      const double loss = cpu[i]["loss"].as_number(), norm = cpu[i]["gradient_norm"].as_number();
      EXPECT_GT(norm, 0);
      EXPECT_NEAR(cuda[i]["loss"].as_number(), loss, bound * loss) << "step " << i + 1;
      EXPECT_NEAR(cuda[i]["gradient_norm"].as_number(), norm, 10 * bound * norm);
    }
  }
}

// Recorded micro-batches have the bits of others.
TEST(CudaAdapters, HaveTheSameBitsInRecordedMicroBatches) {
  const Workplace place;
  std::string printed;
  const auto losses = [&](const std::string& flags) {
    std::vector<std::string> all;
    for (const Json& step : steps(place, "cuda", "--train-iters 6 " + flags, &printed))
      all.push_back(step["loss"].dump());
    return all;
  };
  const std::vector<std::string> launched = losses("");
  EXPECT_EQ(launched.size(), 6u);
  EXPECT_EQ(losses("--cuda-graph-impl local --cuda-graph-warmup-steps 2"), launched);
  // The last 4 steps, of 2 micro-batches each.
  EXPECT_NE(printed.find("CUDA graphs: 2 captured, 8 micro-batches replayed"), std::string::npos)
      << printed;
}

}  // namespace
}  // namespace megatron::testing::adapter_test
