// A run on any layout equals the run of one rank: losses, norms, evaluations and checkpoints.
#include "base/files.h"
#include "dist/training/runs.h"

namespace megatron::training {
namespace {

// `like` has the flags of a layout that gives the same bits. If null, results only agree with one
// rank within rounding.
struct Row {
  const char* name;
  const char* flags;
  const char* like = nullptr;
};

void PrintTo(const Row& row, std::ostream* out) { *out << row.flags; }

constexpr const char* kOne = "";
constexpr const char* kWholeBatch = "--ranks 2 --micro-batch-size 4";

const std::vector<Row> kRows = {
    {"stages", "--pipeline-model-parallel-size 2", kOne},
    {"stages_alone", "--pipeline-model-parallel-size 4 --no-overlap-p2p-communication", kOne},
    {"interleaved", "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2",
     kOne},
    {"zero_bubble_h1", "--pipeline-model-parallel-size 2 --pipeline-schedule zb-h1", kOne},
    {"zero_bubble_v", "--pipeline-model-parallel-size 2 --pipeline-schedule zb-v", kOne},
    {"zero_bubble_v_zero_1",
     "--ranks 4 --pipeline-model-parallel-size 2 --pipeline-schedule zb-v "
     "--use-distributed-optimizer",
     kReplicas},
    {"uneven", "--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 1", kOne},
    {"recompute_full",
     "--pipeline-model-parallel-size 2 --recompute-granularity full --recompute-method block "
     "--recompute-num-layers 1",
     kOne},
    {"recompute_selective",
     "--pipeline-model-parallel-size 2 --recompute-granularity selective --recompute-modules "
     "core_attn mlp layernorm",
     kOne},
    {"recompute_selective_zero_bubble",
     "--pipeline-model-parallel-size 2 --pipeline-schedule zb-h1 --recompute-granularity selective "
     "--recompute-modules mlp_act layernorm",
     kOne},
    {"offload",
     "--pipeline-model-parallel-size 2 --cpu-offloading-num-layers 1 --optimizer-cpu-offload "
     "--optimizer-offload-fraction 0.5",
     kOne},
    {"replicas", kReplicas},
    {"zero_1", "--ranks 2 --use-distributed-optimizer", kReplicas},
    {"zero_1_overlapped",
     "--ranks 2 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather "
     "--ddp-bucket-size 3000",
     kReplicas},
    {"zero_1_stages", "--ranks 4 --pipeline-model-parallel-size 2 --use-distributed-optimizer",
     kReplicas},
    {"zero_1_offload", "--ranks 2 --use-distributed-optimizer --optimizer-cpu-offload", kReplicas},
    {"zero_2_one_micro_batch",
     "--ranks 2 --micro-batch-size 4 --data-parallel-sharding-strategy optim_grads", kWholeBatch},
    {"zero_3_one_micro_batch",
     "--ranks 2 --micro-batch-size 4 --data-parallel-sharding-strategy optim_grads_params",
     kWholeBatch},
    {"zero_2", "--ranks 2 --data-parallel-sharding-strategy optim_grads"},
    {"zero_3", "--ranks 4 --data-parallel-sharding-strategy optim_grads_params"},
    {"zero_3_overlapped",
     "--ranks 4 --data-parallel-sharding-strategy optim_grads_params --overlap-grad-reduce "
     "--overlap-param-gather --recompute-granularity full --recompute-method uniform "
     "--recompute-num-layers 1"},
    {"zero_3_instances",
     "--ranks 4 --data-parallel-sharding-strategy optim_grads_params "
     "--num-distributed-optimizer-instances 2"},
    {"zero_3_stages",
     "--ranks 4 --pipeline-model-parallel-size 2 --data-parallel-sharding-strategy "
     "optim_grads_params"},
    {"tensor", kTensor},
    {"tensor_4", "--tensor-model-parallel-size 4"},
    {"sequence", "--tensor-model-parallel-size 2 --sequence-parallel"},
    {"sequence_distributed",
     "--tensor-model-parallel-size 2 --recompute-granularity full --recompute-method uniform "
     "--recompute-num-layers 1 --distribute-saved-activations",
     kTensor},
    {"tensor_stages", "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2", kTensor},
    {"sequence_stages",
     "--tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 2"},
    {"tensor_zero_1",
     "--tensor-model-parallel-size 2 --sequence-parallel --ranks 4 --use-distributed-optimizer"},
    {"stages_before_replicas", "--ranks 4 --pipeline-model-parallel-size 2 --use-tp-pp-dp-mapping",
     kReplicas},
};

// Validates after every step and saves a checkpoint after the last.
settings::TrainSettings evaluating(settings::TrainSettings s, const std::string& flags) {
  s.batch.train_iters = 3;
  return with_flags(s, "--eval-interval 1 --eval-iters 2 " + flags);
}

class LayoutRun : public ::testing::TestWithParam<Row> {
 protected:
  TrainResult saved(settings::TrainSettings s, const std::string& name) const {
    s.checkpoint.save = folder_ / name;
    return run(s);
  }

  void expect_same(const TrainResult& a, const TrainResult& b) const {
    EXPECT_TRUE(same_bits(losses(a), losses(b)));
    EXPECT_TRUE(same_bits(norms(a), norms(b)));
    EXPECT_EQ(a.validation_loss, b.validation_loss);
    for (const auto& entry : std::filesystem::directory_iterator(a.saved)) {
      if (entry.path().extension() != ".safetensors") continue;
      const std::string name = "/" + entry.path().filename().string();
      EXPECT_TRUE(read_file(a.saved + name) == read_file(b.saved + name)) << name;
    }
  }

  void expect_near(const TrainResult& many, const TrainResult& one) const {
    EXPECT_LE(distance(losses(many), losses(one)), tolerance::kLayoutFp32);
    EXPECT_LE(distance(norms(many), norms(one)), tolerance::kLayoutFp32);
    EXPECT_GT(one.validation_loss, 1);
    EXPECT_LE(distance({many.validation_loss}, {one.validation_loss}), tolerance::kLayoutFp32);
  }

  // Compares runs of SGD with momentum, whose state and weights are sums of gradients. Adam would
  // divide by values that may be pure rounding.
  void expect_tensors_near(settings::TrainSettings model, const Row& row) const {
    model.optimizer.config.method = optim::Method::sgd;
    const SavedTensors one = saved_tensors(saved(evaluating(model, ""), "sgd_one").saved),
                       many = saved_tensors(saved(evaluating(model, row.flags), "sgd").saved);
    EXPECT_LE(distance(many.weights, one.weights), tolerance::kLayoutFp32);
    EXPECT_LE(distance(many.states, one.states), tolerance::kLayoutFp32);
  }

  void expect_equal(const settings::TrainSettings& model) const {
    const Row& row = GetParam();
    const TrainResult one = saved(evaluating(model, ""), "one"),
                      many = saved(evaluating(model, row.flags), "many");
    if (row.like == kOne) {
      expect_same(many, one);
    } else if (row.like != nullptr) {
      expect_same(many, saved(evaluating(model, row.like), "like"));
    }
    expect_near(many, one);
    expect_tensors_near(model, row);
  }

  TemporaryDirectory folder_;
};

TEST_P(LayoutRun, OfAGptIsThatOfOneRank) { expect_equal(deep_gpt2()); }
TEST_P(LayoutRun, OfALlamaIsThatOfOneRank) { expect_equal(deep_llama()); }

// Evaluates, on this layout and without training, a checkpoint that another layout saved.
TEST_P(LayoutRun, EvaluatesWithoutTraining) {
  settings::TrainSettings s = evaluating(deep_llama(), "--pipeline-model-parallel-size 2");
  s.checkpoint.save = folder_ / "saved";
  const TrainResult trained = run(s);
  s = evaluating(deep_llama(), "--skip-train --load " + (folder_ / "saved"));
  const double one = run(s).validation_loss,
               many = run(with_flags(s, GetParam().flags)).validation_loss;
  EXPECT_GT(one, 1);
  EXPECT_NE(one, trained.validation_loss);  // evaluates other samples than the third evaluation
  EXPECT_LE(distance({many}, {one}), tolerance::kLayoutFp32);
}

INSTANTIATE_TEST_SUITE_P(Runs, LayoutRun, ::testing::ValuesIn(kRows),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace megatron::training
