// Runs that start from experts copied from a dense model, in any layout, and their continuation.
#include "dist/training/runs.h"

namespace megatron::training {
namespace {

constexpr const char* kExperts =
    "--moe-use-upcycling --moe-upcycling-granularity 2 --num-experts 8 --moe-router-topk 4 "
    "--moe-layer-freq [0,1,1,1] --optimizer sgd --lr 0.1 ";

class UpcycledRuns : public ::testing::Test {
 protected:
  UpcycledRuns() {
    settings::TrainSettings s = deep_llama();
    s.batch.train_iters = 2;
    s.checkpoint.save = folder_ / "dense";
    dense_ = run(s).saved;
  }

  settings::TrainSettings settings(const std::string& name, const std::string& flags) const {
    settings::TrainSettings s = with_flags(deep_llama(), flags);
    s.batch.train_iters = 4;
    s.checkpoint.save = folder_ / name;
    return s;
  }
  // The model's shape comes from the dense model's directory or from flags.
  settings::TrainSettings upcycled(const std::string& name, const std::string& flags = "") const {
    settings::TrainSettings s = settings(name, kExperts + flags);
    s.run.model = dense_;
    return s;
  }
  static std::string error_of(const settings::TrainSettings& settings) {
    try {
      run(settings);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  TemporaryDirectory folder_;
  std::string dense_;
};

// The first loss is that of the dense model. Later losses are those of one rank.
TEST_F(UpcycledRuns, BeginWhereTheDenseModelIsInEveryLayout) {
  settings::TrainSettings s = settings("tuned", "--finetune --optimizer sgd --lr 0.1");
  s.checkpoint.load = dense_;
  const std::vector<double> dense = losses(run(s)), one = losses(run(upcycled("one")));
  EXPECT_LE(std::abs(one[0] - dense[0]) / dense[0], tolerance::kLayoutFp32);
  int number = 0;
  for (const std::string layout :
       {"--ranks 2 --expert-model-parallel-size 2", "--ranks 2 --tensor-model-parallel-size 2",
        "--ranks 2 --pipeline-model-parallel-size 2",
        "--ranks 2 --data-parallel-sharding-strategy optim_grads_params",
        "--ranks 4 --tensor-model-parallel-size 2 --sequence-parallel "
        "--expert-model-parallel-size 2 --expert-tensor-parallel-size 1 "
        "--use-distributed-optimizer"}) {
    const std::vector<double> found = losses(run(upcycled(std::to_string(number++), layout)));
    EXPECT_LE(distance(found, one), tolerance::kLayoutFp32) << layout;
  }
}

// --load and --pretrained-checkpoint can name the dense model, too.
TEST_F(UpcycledRuns, GoOnToTheBit) {
  const TrainResult straight = run(upcycled("straight"));
  EXPECT_TRUE(std::filesystem::exists(straight.saved + "/config.json"));
  settings::TrainSettings s = settings("parts", kExperts);
  s.checkpoint.load = s.checkpoint.save;
  s.checkpoint.pretrained_checkpoint = dense_;
  s.checkpoint.exit_interval = 1;
  std::vector<double> all = losses(run(s));  // the same command starts the run
  const TrainResult second = run(s);         // and resumes it
  EXPECT_EQ(second.first_iteration, 1);
  for (const double loss : losses(second)) all.push_back(loss);
  s = settings("parts", "--optimizer sgd --lr 0.1");  // one without the dense model resumes it too
  const models::ModelFlags shape = s.shape;
  s.shape = {};
  s.shape.hidden_dropout = shape.hidden_dropout;
  s.shape.attention_dropout = shape.attention_dropout;
  s.checkpoint.load = s.checkpoint.save;
  const TrainResult rest = run(s);
  EXPECT_EQ(rest.first_iteration, 2);
  for (const double loss : losses(rest)) all.push_back(loss);
  EXPECT_TRUE(same_bits(all, losses(straight)));
  EXPECT_EQ(saved_tensors(rest.saved).weights, saved_tensors(straight.saved).weights);
}

TEST_F(UpcycledRuns, AreRefusedBeforeTheFirstStep) {
  const auto has = [](const std::string& text, std::string_view part) {
    return text.find(part) != text.npos ? "" : text.empty() ? "no error" : text;
  };
  settings::TrainSettings s = settings("wrong", kExperts);
  EXPECT_EQ(has(error_of(s), "--moe-use-upcycling needs a dense model"), "");
  s.run.model_config = "llama3_8b";
  EXPECT_EQ(has(error_of(s), "--model-config llama3_8b has none"), "");
  s = upcycled("wrong", "--moe-upcycling-granularity 5");
  EXPECT_EQ(has(error_of(s), "--moe-upcycling-granularity 5 does not divide 48"), "");
  s = upcycled("wrong", "--num-layers 5");
  EXPECT_EQ(has(error_of(s), "the dense model described by the flags differs from the one in"), "");
  s = upcycled("wrong", "--vocab-size 98");
  EXPECT_EQ(has(error_of(s), "--vocab-size is 98, but"), "");
  s = upcycled("wrong");
  s.shape = with_flags({}, std::string(kExperts) + "--swiglu --num-layers 5").shape;
  EXPECT_EQ(has(error_of(s), "num-layers 4 in the checkpoint and 5 now"), "");
  s = upcycled("part");
  s.shape = with_flags({}, std::string(kExperts) + "--swiglu --num-layers 4").shape;
  EXPECT_EQ(error_of(s), "");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "wrong"));
  run(upcycled("there"));
  EXPECT_EQ(has(error_of(upcycled("there")), "drop it and its flags and give only --load"), "");
  s = upcycled("wrong");
  s.run.model = folder_ / "there";
  s.shape = with_flags({}, kExperts).shape;
  EXPECT_EQ(has(error_of(s), "layer 1 of this model already has experts"), "");
}

}  // namespace
}  // namespace megatron::training
