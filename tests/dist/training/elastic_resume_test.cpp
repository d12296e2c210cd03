// A run that stops on one layout and continues on another equals a run that never stopped.
#include <mutex>

#include "checkpoint/checkpoint_directory.h"
#include "comm/threads.h"
#include "dist/ranks.h"
#include "dist/training/runs.h"
#include "training/trained_model.h"
#include "training/whole_model.h"

namespace megatron::training {
namespace {

// `like` has the flags of a layout that gives the same bits as both layouts. If null, results only
// agree with one rank within rounding.
struct Pair {
  const char* name;
  const char* before;
  const char* after;
  const char* like = nullptr;
};

void PrintTo(const Pair& pair, std::ostream* out) { *out << pair.before << " to " << pair.after; }

constexpr const char* kStages = "--pipeline-model-parallel-size 2";
constexpr const char* kInterleaved =
    "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2";
constexpr const char* kZeroBubbleV = "--pipeline-model-parallel-size 2 --pipeline-schedule zb-v";
constexpr const char* kZeroBubbleH1 = "--pipeline-model-parallel-size 4 --pipeline-schedule zb-h1";
constexpr const char* kGrid = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2";
constexpr const char* kSequence = "--tensor-model-parallel-size 2 --sequence-parallel";
constexpr const char* kZero1 = "--ranks 2 --use-distributed-optimizer";
constexpr const char* kZero2 = "--ranks 2 --data-parallel-sharding-strategy optim_grads";
constexpr const char* kZero3 = "--ranks 4 --data-parallel-sharding-strategy optim_grads_params";
constexpr const char* kZero1Stages =
    "--ranks 4 --pipeline-model-parallel-size 2 --use-distributed-optimizer";
constexpr const char* kContext = "--context-parallel-size 2";
constexpr const char* kContext4 = "--context-parallel-size 4 --cp-comm-type all_gather";
constexpr const char* kContextZero1 =
    "--ranks 4 --context-parallel-size 2 --cp-comm-type a2a --use-distributed-optimizer";
constexpr const char* kContext4Zero3 =
    "--context-parallel-size 4 --data-parallel-sharding-strategy optim_grads_params";

const std::vector<Pair> kPairs = {
    {"one_to_stages", "", kStages, ""},
    {"stages_to_interleaved", kStages, kInterleaved, ""},
    {"interleaved_to_zero_bubble_v", kInterleaved, kZeroBubbleV, ""},
    {"zero_bubble_v_to_zero_bubble_h1", kZeroBubbleV, kZeroBubbleH1, ""},
    {"zero_bubble_h1_to_one", kZeroBubbleH1, "", ""},
    {"replicas_to_zero_1", kReplicas, kZero1, kReplicas},
    {"zero_1_to_zero_1_on_stages", kZero1, kZero1Stages, kReplicas},
    {"tensor_to_grid", kTensor, kGrid, kTensor},
    {"one_to_tensor", "", kTensor},
    {"grid_to_zero_3", kGrid, kZero3},
    {"zero_3_to_sequence", kZero3, kSequence},
    {"sequence_to_zero_2", kSequence, kZero2},
    {"zero_2_to_one", kZero2, ""},
    {"zero_1_on_stages_to_grid", kZero1Stages, kGrid},
    {"grid_to_tensor_4", kGrid, "--tensor-model-parallel-size 4"},
    {"one_to_context_2", "", kContext},
    {"context_2_to_context_4", kContext, kContext4},
    {"context_2_zero_1_to_context_4_zero_3", kContextZero1, kContext4Zero3},
    {"context_4_zero_3_to_one", kContext4Zero3, ""},
};

class ElasticResume : public ::testing::TestWithParam<Pair> {
 protected:
  void expect_equal(settings::TrainSettings s) {
    const Pair& pair = GetParam();
    s.batch.train_iters = 6;
    const std::vector<double> one = losses(run(s));
    const std::string folder = folder_ / "run";
    s.checkpoint.save = s.checkpoint.load = folder;
    s.checkpoint.exit_interval = 3;
    std::vector<double> all = losses(run(with_flags(s, pair.before)));
    s.checkpoint.exit_interval.reset();
    const TrainResult rest = run(with_flags(s, pair.after));
    EXPECT_EQ(rest.first_iteration, 3);
    for (const double loss : losses(rest)) all.push_back(loss);
    EXPECT_LE(distance(all, one), tolerance::kLayoutFp32);
    s.checkpoint.save = s.checkpoint.load = std::nullopt;
    if (pair.like == nullptr) return;
    EXPECT_TRUE(same_bits(all, losses(run(with_flags(s, pair.like)))));
  }

  TemporaryDirectory folder_;
};

TEST_P(ElasticResume, OfAGptGoesOn) { expect_equal(deep_gpt2()); }
TEST_P(ElasticResume, OfALlamaGoesOn) { expect_equal(deep_llama()); }

INSTANTIATE_TEST_SUITE_P(Pairs, ElasticResume, ::testing::ValuesIn(kPairs),
                         [](const auto& info) { return std::string(info.param.name); });

// A block that layers share is stored once, whichever interleaved stages hold copies of it.
class SharedBlocksResume : public ElasticResume {};

TEST_P(SharedBlocksResume, GoesOn) {
  write_file(folder_ / "config.json", R"({
    "model_type": "zamba2", "vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 4,
    "layers_block_type": ["hybrid", "hybrid", "mamba", "hybrid"], "num_attention_heads": 4,
    "num_mem_blocks": 1, "intermediate_size": 24, "adapter_rank": 3,
    "use_shared_attention_adapter": true, "mamba_d_state": 6, "n_mamba_heads": 4,
    "mamba_ngroups": 2, "max_position_embeddings": 64})");
  settings::TrainSettings s = four_layers(tiny_llama());
  s.shape = {};
  s.run.model_config = folder_ / "config.json";
  expect_equal(std::move(s));
}

INSTANTIATE_TEST_SUITE_P(Pairs, SharedBlocksResume,
                         ::testing::Values(Pair{"one_to_interleaved", "", kInterleaved, ""},
                                           Pair{"interleaved_to_one", kInterleaved, "", ""}),
                         [](const auto& info) { return std::string(info.param.name); });

// Error on each of four ranks (TP 2, PP 2) when a checkpoint of `saved` layers is loaded into a
// model of `held` layers.
std::vector<std::string> refusals(int64_t saved, int64_t held) {
  const TemporaryDirectory folder;
  settings::TrainSettings s = deep_llama();
  s.shape.num_layers = saved;
  s.batch.train_iters = 1;
  s.checkpoint.save = folder / "run";
  const std::string path = run(s).saved;
  s.shape.num_layers = held;
  const models::Model definition = models::model_from_flags(s.shape, *s.batch.seq_length);
  const WholeModel whole = whole_model(definition, DType::f32, &s.optimizer.config);
  std::vector<std::string> texts(8);
  testing::run_ranks(4, [&](comm::Group& world) {
    Runtime runtime({DeviceKind::cpu, 0}, 1);
    ModelLayout layout;
    layout.ranks.layout = {.tp = 2, .pp = 2};
    layout.ranks.pipeline = {.stages = 2};
    TrainedModel model(definition, DType::f32, 1, layout, world, runtime, {});
    model.step.begin(s.optimizer.config);
    const checkpoint::CheckpointDirectory directory(path);
    const auto rank = static_cast<size_t>(world.rank());
    try {
      checkpoint::load(directory.model(), checkpoint::held(model.shards()), whole.weights);
    } catch (const Error& error) {
      texts[2 * rank] = error.what();
    }
    try {
      directory.load_optimizer(held_states(model.step), whole.optimizer);
    } catch (const Error& error) {
      texts[2 * rank + 1] = error.what();
    }
  });
  return texts;
}

void expect_all_name(const std::vector<std::string>& texts, const std::string& tensor,
                     const std::string& what) {
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string name = (i % 2 == 0 ? "" : "exp_avg.") + tensor;
    EXPECT_NE(texts[i].find(name), std::string::npos) << name << " in: " << texts[i];
    EXPECT_NE(texts[i].find(what), std::string::npos) << texts[i];
    EXPECT_EQ(texts[i], texts[i % 2]);
  }
}

TEST(Checkpoint, AMissingTensorIsAnErrorOnEveryRank) {
  expect_all_name(refusals(2, 4), "model.layers.2.self_attn.q_proj.weight", "missing");
}

TEST(Checkpoint, ASurplusTensorIsAnErrorOnEveryRank) {
  expect_all_name(refusals(4, 2), "model.layers.2.mlp.down_proj.weight", "not in the");
}

}  // namespace
}  // namespace megatron::training
