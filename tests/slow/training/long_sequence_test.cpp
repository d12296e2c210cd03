// A sequence of 131,072 tokens on four context-parallel ranks: each needs a quarter of the memory,
// as planned, and a step computes the loss.
#include <gtest/gtest.h>

#include <cmath>

#include "dist/training/executed_run.h"
#include "dist/training/runs.h"

namespace megatron::training {
namespace {

// The step's time is dominated by attention, which grows with the square of the length, so heads
// are few and narrow.
settings::TrainSettings long_llama(const std::string& flags) {
  return with_flags(tiny_llama(),
                    "--num-layers 2 --hidden-size 128 --ffn-hidden-size 512 "
                    "--num-attention-heads 1 --num-query-groups 1 --kv-channels 16 "
                    "--seq-length 131072 --max-position-embeddings 131072 --micro-batch-size 1 "
                    "--global-batch-size 1 --train-iters 1 --vocab-size 256 " +
                        flags);
}

// Bytes of activations and communication buffers.
int64_t activations(std::span<const int64_t> arenas) {
  return arenas[static_cast<size_t>(MemoryClass::activations)] +
         arenas[static_cast<size_t>(MemoryClass::communication)];
}

TEST(LongSequence, TakesAQuarterOfTheMemoryOnEachOfFourRanks) {
  const PlanOptions options{.samples = false};
  for (const std::string chunks : {"", " --mlp-chunks-for-training 8"}) {
    const plan::Plan one = make_plan(long_llama("--ranks 1" + chunks), options);
    const settings::TrainSettings divided =
        long_llama("--ranks 4 --context-parallel-size 4" + chunks);
    const plan::Plan four = make_plan(divided, options);
    const int64_t of_one = activations(one.memory.arenas),
                  of_four = activations(four.memory.arenas);
    EXPECT_LE(static_cast<double>(of_four), 0.28 * static_cast<double>(of_one)) << chunks;
    if (!chunks.empty()) continue;
    for (const ExecutedRank& rank : executed(settle_run(divided), 1)) {
      EXPECT_EQ(activations(rank.memory), of_four);
      // The loss of 256 equally likely tokens.
      EXPECT_NEAR(rank.loss, std::log(256), 0.1);
    }
  }
}

}  // namespace
}  // namespace megatron::training
