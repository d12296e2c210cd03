// A run that is killed repeatedly gives the same results as one that is never killed.
#include <fstream>

#include "golden/cli/kill_series.h"
#include "golden/selftest/support.h"

namespace megatron::testing {
namespace {

// Nine kills with one rank and with two, in short tests; slow/cli has a hundred of each.
class Kill : public ::testing::TestWithParam<std::tuple<int, unsigned>> {};

TEST_P(Kill, ThreeTimes) {
  const auto [ranks, part] = GetParam();
  KillSeries(ranks, 3, 10 * part + static_cast<unsigned>(ranks)).run();
}

INSTANTIATE_TEST_SUITE_P(Series, Kill,
                         ::testing::Combine(::testing::Values(1, 2), ::testing::Range(0U, 3U)),
                         [](const auto& info) {
                           return std::to_string(std::get<0>(info.param)) + "_ranks_part" +
                                  std::to_string(std::get<1>(info.param));
                         });

class KillOfExperts : public ::testing::TestWithParam<unsigned> {};

TEST_P(KillOfExperts, FiveTimes) { KillSeries(2, 5, 100 + GetParam(), kExpertRanks).run(); }

INSTANTIATE_TEST_SUITE_P(Series, KillOfExperts, ::testing::Values(0U, 1U));

// Each resumed run has a different context-parallel size from the run that was killed.
TEST(KillOfContextRanks, BetweenFourPairsOfSizes) {
  KillSeries({"--ranks 1", "--context-parallel-size 2", "--context-parallel-size 4",
              "--ranks 4 --context-parallel-size 2 --cp-comm-type a2a --use-distributed-optimizer"},
             4, 6)
      .run();
}

// An encoder's samples and masks are functions of the seed and the sample's number, and dropout of
// the token's place, so a run may be killed and resumed in any layout.
TEST(KillOfEncoders, BetweenFourLayouts) {
  KillSeries(
      {"--ranks 1", "--tensor-model-parallel-size 2 --sequence-parallel",
       "--pipeline-model-parallel-size 2",
       "--ranks 2 --data-parallel-sharding-strategy optim_grads_params"},
      4, 21,
      fmt::format("train --task mlm --max-position-embeddings 32 --hidden-dropout 0.1 "
                  "--data-path {} --tokenizer-model {}",
                  vectors("bert_dataset/data/docs60"), vectors("bert_dataset/data/wordpiece")))
      .run();
}

// So are those of an encoder-decoder, whose stages end inside of the encoder or behind it.
TEST(KillOfEncoderDecoders, BetweenFourLayouts) {
  KillSeries(
      {"--ranks 1", "--tensor-model-parallel-size 2 --sequence-parallel",
       "--pipeline-model-parallel-size 2 --micro-batch-size 1",
       "--ranks 2 --data-parallel-sharding-strategy optim_grads_params"},
      3, 23,
      fmt::format("train --task span-corruption --max-position-embeddings 32 --hidden-dropout 0.1 "
                  "--decoder-seq-length 16 --data-path {} --vocab-file {} "
                  "--tokenizer-type BertWordPieceLowerCase --vocab-extra-ids 20",
                  vectors("bert_dataset/data/docs60"),
                  vectors("bert_dataset/data/wordpiece/vocab.txt")))
      .run();
}

// States of state spaces are not kept between steps, and no layer depends on where the others are.
TEST(KillOfHybrids, BetweenFourLayouts) {
  KillSeries({"--ranks 1", "--tensor-model-parallel-size 2 --sequence-parallel",
              "--pipeline-model-parallel-size 2",
              "--context-parallel-size 2 --data-parallel-sharding-strategy optim_grads_params"},
             3, 27,
             "train --vocab-size 5000 --mock-data --hybrid-layer-pattern M-*M --mamba-state-dim 16 "
             "--mamba-head-dim 16 --mamba-num-groups 2 --position-embedding-type none "
             "--normalization RMSNorm --squared-relu --disable-bias-linear")
      .run();
}

// Runs of examples, whose rows are packed and drawn anew in each epoch.
TEST(KillOfTasks, OfEveryKind) {
  const Workplace data;
  std::ofstream chats(data / "chats"), pairs(data / "pairs"), labels(data / "labels");
  for (int i = 0; i < 31; ++i) {
    const std::string text(static_cast<size_t>(1 + i % 7), 'a'),
        chosen = "b" + std::to_string(i % 5), rejected = "c" + std::to_string(i % 3);
    chats << R"({"prompt": ")" << text << R"(", "completion": ")" << chosen << "\"}\n";
    pairs << R"({"prompt": ")" << text << R"(", "chosen": ")" << chosen << R"(", "rejected": ")"
          << rejected << "\"}\n";
    labels << R"({"text": ")" << text << chosen << R"(", "label": ")" << (i % 2 == 0 ? "x" : "y")
           << "\"}\n";
  }
  for (std::ofstream* file : {&chats, &pairs, &labels}) file->close();
  for (const auto& [task, file] : {std::pair{"sft", "chats"},
                                   {"dpo", "pairs"},
                                   {"dpo --precompute-reference", "pairs"},
                                   {"reward", "pairs"},
                                   {"classify", "labels"},
                                   {"seq2seq --input-key prompt --target-key chosen", "pairs"}}) {
    SCOPED_TRACE(task);
    KillSeries({"--ranks 1"}, 1, 9,
               fmt::format("{} --vocab-size 512 --tokenizer-model {} --data-path {}", task,
                           vectors("post_training/sft/chatml"), data / file))
        .run();
  }
}

}  // namespace
}  // namespace megatron::testing
