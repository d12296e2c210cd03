// Multi-token prediction of a run by flags: what it logs, saves, resumes and reads.
#include <gtest/gtest.h>

#include "base/json.h"
#include "checkpoint/safetensors.h"
#include "golden/cli/process.h"
#include "golden/selftest/support.h"
#include "text.h"

namespace megatron::testing {
namespace {

namespace fs = std::filesystem;

// A small GLM-4.6 with one depth.
Words train(int steps, const Words& more) {
  return with(words("train --model-config twins/glm4.6 --mock-data --seq-length 32 "
                    "--micro-batch-size 1 --global-batch-size 2 --lr 1e-3 --min-lr 1e-3 "
                    "--lr-decay-style constant --log-interval 1 --save-interval 2 --train-iters " +
                    std::to_string(steps)),
              more);
}

std::set<std::string> tensors_of(const std::string& directory) {
  std::set<std::string> names;
  const checkpoint::SafetensorsFile file(directory + "/model.safetensors");
  for (const checkpoint::TensorInfo& info : file.tensors()) names.insert(info.name);
  return names;
}

std::map<std::string, std::vector<double>> values_of(const std::string& directory) {
  std::map<std::string, std::vector<double>> values;
  const checkpoint::SafetensorsFile file(directory + "/model.safetensors");
  for (const checkpoint::TensorInfo& info : file.tensors())
    values[info.name] = file.doubles(info.name);
  return values;
}

class Prediction : public ::testing::Test {
 protected:
  Outcome run(const Words& arguments) {
    Outcome outcome = place_.run(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
    return outcome;
  }
  std::vector<Json> steps(const std::string& folder) { return records(folder, "step"); }
  std::vector<Json> records(const std::string& folder, const std::string& type) {
    std::vector<Json> found;
    for (const Json& line : read_lines(place_ / (folder + "/log.jsonl")))
      if (line["type"].as_string() == type) found.push_back(line);
    return found;
  }
  static std::vector<Json> read_lines(const std::string& path) {
    std::vector<Json> lines;
    std::istringstream in(read_file(path));
    for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
    return lines;
  }

  Workplace place_;
};

TEST_F(Prediction, IsLoggedSavedResumedAndRead) {
  run(train(4, {"--save", "whole"}));
  run(train(2, {"--save", "parts"}));
  run(train(4, {"--save", "parts", "--load", "parts"}));
  EXPECT_TRUE(values_of(place_ / "whole/iter_0000004") == values_of(place_ / "parts/iter_0000004"));
  const double loss = steps("whole").back()["metrics"]["mtp_1 loss"].as_number();
  EXPECT_NEAR(loss, std::log(512), 0.2);
  EXPECT_EQ(steps("parts").back()["metrics"]["mtp_1 loss"].as_number(), loss);

  const std::string saved = place_ / "whole/iter_0000004";
  const std::set<std::string> names = tensors_of(saved);
  for (const char* name : {"enorm", "hnorm", "eh_proj", "shared_head.norm", "input_layernorm",
                           "mlp.experts.3.down_proj", "self_attn.q_norm"})
    EXPECT_TRUE(names.contains(std::string("model.layers.2.") + name + ".weight")) << name;
  EXPECT_FALSE(names.contains("model.layers.2.shared_head.head.weight"));
  EXPECT_EQ(Json::read(saved + "/config.json")["num_nextn_predict_layers"].as_integer(), 1);

  // Inference leaves the depth out; another run takes it in, or leaves it out for good.
  const Outcome eval =
      run(words("eval --mock-data --seq-length 16 --eval-samples 4 --load " + saved));
  EXPECT_NE((eval.out + eval.err).find("multi-token prediction, which are ignored: 1"),
            std::string::npos);
  const auto tuned = [&](const std::string& to, const Words& more) {
    return run(with(words("train --finetune --moe-router-bias-update-rate 0 --model " + saved +
                          " --mock-data --seq-length 32 --micro-batch-size 1 --lr 0 --min-lr 0 "
                          "--train-iters 1 --save " +
                          to),
                    more));
  };
  tuned("again", {});
  EXPECT_TRUE(values_of(place_ / "again/iter_0000001") == values_of(saved));
  tuned("without", {"--mtp-num-layers", "0"});
  EXPECT_FALSE(tensors_of(place_ / "without/iter_0000001").contains("model.layers.2.enorm.weight"));
  EXPECT_EQ(Json::read(place_ / "without/iter_0000001/config.json")["num_nextn_predict_layers"]
                .as_integer(),
            0);
}

// The embedding is also that of the depths, and without more flags the output layer.
TEST_F(Prediction, PipelinesGiveTheSameBits) {
  for (const char* tie : {"", "--untie-embeddings-and-output-weights"}) {
    const auto trained = [&](const std::string& to, const std::string& ranks) {
      run(
          words("train --num-layers 4 --hidden-size 16 --num-attention-heads 2 --vocab-size 64 "
                "--seq-length 16 --position-embedding-type rope --micro-batch-size 2 "
                "--global-batch-size 8 --train-iters 3 --lr 1e-2 --mock-data --threads 1 "
                "--mtp-num-layers 2 --save " +
                to + " " + ranks + " " + tie));
      return values_of(place_ / (to + "/iter_0000003"));
    };
    const std::string to = *tie == 0 ? "tied" : "untied";
    EXPECT_TRUE(trained(to + "1", "") ==
                trained(to + "2", "--ranks 2 --pipeline-model-parallel-size 2"))
        << tie;
  }
}

// Detached depths leave every bit of the model as it is without them, although gradients are
// clipped. In a stage of their own, also after a restart, they and their figures are the same.
TEST_F(Prediction, DetachedDepthsOnAStageOfTheirOwn) {
  const Words more = words("--clip-grad 0.1 --eval-interval 2 --eval-iters 2 --vocab-size 12");
  const auto trained = [&](int steps, const std::string& to, const std::string& flags) {
    run(with(train(steps, more), words("--save " + to + " " + flags)));
    return values_of(place_ / (to + "/iter_000000" + std::to_string(steps)));
  };
  const std::string apart =
      "--mtp-detach-heads --threads 1 --ranks 3 --pipeline-model-parallel-size 3 "
      "--pipeline-model-parallel-layout Ett|m|L";
  const auto without = trained(4, "without", "--threads 1 --mtp-num-layers 0"),
             whole = trained(4, "whole", "--threads 1 --mtp-detach-heads");
  trained(2, "apart", apart);
  EXPECT_TRUE(trained(4, "apart", apart + " --load apart") == whole);
  EXPECT_GT(whole.size(), without.size());
  for (const auto& [name, values] : without) EXPECT_TRUE(values == whole.at(name)) << name;

  const Json step = steps("whole").back(), other = steps("apart").back();
  EXPECT_EQ(step["gradient_norm"].as_number(),
            steps("without").back()["gradient_norm"].as_number());
  EXPECT_EQ(step["gradient_norm"].as_number(), other["gradient_norm"].as_number());
  EXPECT_GT(step["gradient_norm"].as_number(), 0.1);
  const Json valid = records("whole", "validation").back(),
             valid_apart = records("apart", "validation").back();
  EXPECT_TRUE(valid.contains("perplexity"));
  for (const char* name : {"mtp_1 loss", "mtp_1 acceptance"}) {
    EXPECT_GT(step["metrics"][name].as_number(), 0) << name;
    EXPECT_NEAR(step["metrics"][name].as_number(), other["metrics"][name].as_number(), 1e-12);
    EXPECT_GT(valid[name].as_number(), 0) << name;
    EXPECT_EQ(valid[name].as_number(), valid_apart[name].as_number()) << name;
  }
  EXPECT_EQ(step["metrics"]["mtp grad norm"].as_number(),
            other["metrics"]["mtp grad norm"].as_number());
}

TEST_F(Prediction, ErrorsNameWhatIsWrong) {
  const auto refused = [&](const Words& arguments, const std::string& text) {
    const Outcome outcome = place_.run(arguments);
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    EXPECT_NE(outcome.err.find(text), std::string::npos) << outcome.err;
  };
  run(train(1, {"--save", "run"}));
  const std::string saved = place_ / "run/iter_0000001";
  const Words from = words(
      "train --mock-data --seq-length 32 --micro-batch-size 1 --lr 0 --finetune "
      "--train-iters 1 --model " +
      saved);
  refused(with(from, {"--mtp-num-layers", "2"}), "model.layers.3.");
  refused(with(from, {"--mtp-num-layers", "1", "--lora-rank", "2"}), "--mtp-num-layers is 1");
  refused(with(from, {"--mtp-num-layers", "17"}), "--mtp-num-layers is 17");
  refused(words("train --num-layers 2 --hidden-size 16 --num-attention-heads 2 --vocab-size 64 "
                "--seq-length 16 --micro-batch-size 1 --lr 1e-3 --train-iters 1 --mock-data "
                "--mtp-num-layers 1"),
          "--position-embedding-type rope");
  const Outcome idle =
      run(words("train --num-layers 2 --hidden-size 16 --num-attention-heads 2 --vocab-size 64 "
                "--seq-length 16 --micro-batch-size 1 --lr 1e-3 --train-iters 1 --mock-data "
                "--mtp-loss-scaling-factor 0.3"));
  EXPECT_NE((idle.out + idle.err).find("--mtp-loss-scaling-factor has no effect"),
            std::string::npos)
      << idle.err;
  // A copy of the output layer that equals it is accepted, and left out.
  const std::string copy = "model.layers.2.shared_head.head.weight";
  const Shape shape =
      checkpoint::SafetensorsFile(saved + "/model.safetensors").find("lm_head.weight")->shape;
  change_tensors(saved + "/model.safetensors",
                 [&](Values& values) { values[copy] = values.at("lm_head.weight"); },
                 {{copy, shape}});
  fs::remove(saved + "/trainer_state.json");
  const Outcome equal = run(with(from, {"--save", "equal"}));
  EXPECT_FALSE(tensors_of(place_ / "equal/iter_0000001").contains(copy)) << equal.err;
  change_tensors(saved + "/model.safetensors", [&](Values& values) { values[copy][0] += 1; });
  refused(from, "shares the model's own");
}

}  // namespace
}  // namespace megatron::testing
