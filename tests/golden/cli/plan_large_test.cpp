// The plan of a run far too large for this machine takes little time.
#include <sstream>

#include "base/json.h"
#include "golden/cli/tiny_run.h"

namespace megatron::testing {
namespace {

// GPT-3 175B as Narayanan et al. (2021) trained it, on 1024 ranks.
TEST(PlanLarge, Of175BillionParametersOn1024Ranks) {
  std::istringstream flags(
      "plan --num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048 "
      "--max-position-embeddings 2048 --vocab-size 51200 --mock-data --micro-batch-size 1 "
      "--global-batch-size 1536 --bf16 --tensor-model-parallel-size 8 --sequence-parallel "
      "--pipeline-model-parallel-size 16 --num-layers-per-virtual-pipeline-stage 3 "
      "--use-distributed-optimizer --recompute-granularity selective --ranks 1024 --no-time "
      "--json");
  Words words;
  for (std::string word; flags >> word;) words.push_back(word);
  const Workplace place;
  const Outcome r = place.run(words);
  ASSERT_EQ(r.code, 0) << r.err;
  const Json plan = Json::parse(r.out);
  EXPECT_NEAR(plan["parameters"]["total"].as_number(), 174.6e9, 0.2e9);
  // 1/128 of the layers and 1/8 of the embedding, in bf16 with f32 gradients.
  const Json& rank = plan["memory"]["rank"];
  EXPECT_NEAR(rank["parameters"].as_number(), 2 * 1.46e9, 0.1e9);
  EXPECT_NEAR(rank["gradients"].as_number(), 4 * 1.46e9, 0.2e9);
  EXPECT_LE(rank["activations"].as_number(), 16e9);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(r.bytes, int64_t{1} << 30);
#endif
}

}  // namespace
}  // namespace megatron::testing
