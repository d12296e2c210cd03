// Runs that train adapters (--lora-rank): their checkpoints are adapters, resumed runs have the
// bits of one run, and what cannot be trained so is refused.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "base/json.h"
#include "checkpoint/safetensors.h"
#include "golden/cli/process.h"
#include "golden/selftest/support.h"
#include "text.h"
#include "training/model_source.h"

namespace megatron::testing::adapter_run_test {
namespace {

constexpr const char* kPrefix = "base_model.model.";

class AdapterRun : public ::testing::Test {
 protected:
  static std::string base() { return vectors("post_training/models/policy"); }
  static Words command(const std::string& more) {
    return words("train --model " + base() +
                 " --finetune --mock-data --tokenizer-type NullTokenizer --seq-length 32 "
                 "--micro-batch-size 1 --global-batch-size 4 --lr 1e-2 --lr-decay-iters 4 "
                 "--train-iters 4 --threads 1 --log-interval 1 " +
                 more);
  }
  void succeeds(const Words& line) const {
    const Outcome r = place_.run(line);
    ASSERT_EQ(r.code, 0) << r.out << r.err;
  }
  void refused(const Words& line, std::initializer_list<std::string_view> parts) const {
    const Outcome r = place_.run(line);
    EXPECT_NE(r.code, 0) << r.out << r.err;
    expect_contains(r.err, parts);
  }
  // The last checkpoints of two runs, byte for byte, but for their layouts.
  void expect_same(const std::string& a, const std::string& b) const {
    for (const char* name : {"/adapter_model.safetensors", "/adapter_config.json",
                             "/optimizer-00001-of-00001.safetensors"})
      EXPECT_TRUE(read_file(place_ / (a + kLast + name)) == read_file(place_ / (b + kLast + name)))
          << name << " of " << a << " and " << b;
  }
  // Loss of the validation set.
  std::string validation(const std::string& model) const {
    const std::string log = place_ / "validation.jsonl";
    std::filesystem::remove(log);
    succeeds(command("--skip-train --eval-iters 2 --log-jsonl validation.jsonl " + model));
    std::istringstream lines(read_file(log));
    for (std::string line; std::getline(lines, line);)
      if (const Json record = Json::parse(line); record["type"].as_string() == "validation")
        return record["loss"].dump();
    ADD_FAILURE() << "no validation in\n" << lines.str();
    return {};
  }

  static constexpr const char* kLast = "/iter_0000004";
  Workplace place_;
};

// Scales of frozen weights (--fp8-recipe delayed) are saved with the optimizer's state.
TEST_F(AdapterRun, ResumedHasTheBitsOfOneRun) {
  const std::string adapter =
      "--lora-rank 4 --lora-rank-pattern down_proj=3 --lora-alpha 6 --lora-modules-to-save "
      "lm_head --lora-dropout 0.25 --fp8-format hybrid --fp8-amax-history-len 2 ";
  succeeds(command(adapter + "--save whole"));
  const checkpoint::SafetensorsFile states(
      place_ / ("whole" + std::string(kLast) + "/optimizer-00001-of-00001.safetensors"));
  EXPECT_NE(states.doubles("quantizer.layers.1.mlp.down.weight.scales"), std::vector(3, 1.0));
  for (const auto& [folder, first, second] :
       {std::tuple{"parts", "", ""},
        {"moved", "", "--pipeline-model-parallel-size 2 --recompute-activations "},
        {"stages", "--pipeline-model-parallel-size 2 --pipeline-schedule zb-h1 ", ""}}) {
    const std::string saves = fmt::format("--save {0} --load {0} ", folder);
    succeeds(command(adapter + saves + first + "--exit-interval 2"));
    succeeds(command(adapter + saves + second));
    expect_same("whole", folder);
  }
}

// Sums over other ranks differ by rounding only.
TEST_F(AdapterRun, ResumesOnOtherRanks) {
  succeeds(command("--lora-rank 4 --save whole"));
  const std::string saves = "--lora-rank 4 --save run --load run ";
  succeeds(command(saves + "--tensor-model-parallel-size 2 --sequence-parallel --exit-interval 2"));
  succeeds(command(saves + "--ranks 2 --data-parallel-sharding-strategy optim_grads_params"));
  const std::string file = std::string(kLast) + "/adapter_model.safetensors";
  const checkpoint::SafetensorsFile whole(place_ / ("whole" + file)), run(place_ / ("run" + file));
  for (const checkpoint::TensorInfo& info : whole.tensors()) {
    const std::vector<double> a = whole.doubles(info.name), b = run.doubles(info.name);
    ASSERT_EQ(a.size(), b.size()) << info.name;
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-5) << info.name << " " << i;
  }
}

TEST_F(AdapterRun, ItsCheckpointIsAnAdapterThatOpensByItself) {
  succeeds(command("--lora-rank 4 --lora-target q_proj down_proj --save run"));
  std::set<std::string> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(place_ / ("run" + std::string(kLast))))
    files.insert(entry.path().filename().string());
  EXPECT_TRUE(files.contains("adapter_config.json") && !files.contains("config.json"));
  EXPECT_TRUE(files.contains("adapter_model.safetensors") && !files.contains("model.safetensors"));
  const std::string folder = place_ / ("run" + std::string(kLast));
  const checkpoint::SafetensorsFile file(folder + "/adapter_model.safetensors");
  std::set<std::string> names, expected;
  for (const checkpoint::TensorInfo& info : file.tensors()) names.insert(info.name);
  for (const int layer : {0, 1})
    for (const char* module : {"self_attn.q_proj", "mlp.down_proj"})
      for (const char* matrix : {"A", "B"})
        expected.insert(
            fmt::format("{}model.layers.{}.{}.lora_{}.weight", kPrefix, layer, module, matrix));
  EXPECT_EQ(names, expected);
  const Json config = Json::read(folder + "/adapter_config.json");
  EXPECT_EQ(config["base_model_name_or_path"].as_string(), base());
  EXPECT_EQ(config["r"].as_integer(), 4);
  const checkpoint::ModelDirectory directory(folder);
  Runtime runtime({DeviceKind::cpu, 0}, 1);
  const auto model =
      training::load_model(directory, models::model_of(directory), runtime, DType::f32, 0);
  const std::string& name = *names.rbegin();
  const parallel::ParameterSpec* b = nullptr;
  for (const parallel::ParameterSpec* placed : model->parameters())
    if (placed->placement.tensors[0].name == name) b = placed;
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(to_doubles(b->parameter.value), file.doubles(name));
  // B is zero at first: an untrained adapter adds nothing.
  const std::string of_base = validation(""), trained = validation("--adapter " + folder);
  EXPECT_EQ(validation("--lora-rank 4"), of_base);
  EXPECT_NE(trained, of_base);
  EXPECT_EQ(validation("--lora-dropout 0.5 --adapter run"), trained);  // the newest of a folder
  // A run that starts from an adapter and changes nothing ends with it.
  succeeds(command("--adapter " + folder + " --lr 0 --lr-decay-style constant --save next"));
  EXPECT_EQ(read_file(place_ / ("next" + std::string(kLast) + "/adapter_model.safetensors")),
            read_file(folder + "/adapter_model.safetensors"));
}

TEST_F(AdapterRun, ChatsTrainAnAdapter) {
  std::ofstream chats(place_ / "chats.jsonl");
  for (int i = 0; i < 40; ++i)
    chats << R"({"messages": [{"role": "user", "content": "next )" << i
          << R"("}, {"role": "assistant", "content": ")" << i + 1 << "\"}]}\n";
  chats.close();
  const std::string all =
      "--tokenizer-model " + vectors("post_training/sft/chatml") +
      " --data-path chats.jsonl --seq-length 64 --micro-batch-size 2 --global-batch-size 4 --lr "
      "1e-3 --threads 1 --log-interval 1 ";
  succeeds(words("sft " + all +
                 "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --vocab-size 512 "
                 "--train-iters 1 --save model"));
  const std::string tuned = "sft " + all + "--model model/iter_0000001 --lora-rank 4 ";
  succeeds(words(tuned + "--train-iters 4 --save whole"));
  succeeds(words(tuned + "--train-iters 4 --save parts --load parts --exit-interval 2"));
  succeeds(words(tuned + "--train-iters 4 --save parts --load parts"));
  expect_same("whole", "parts");
  EXPECT_TRUE(std::filesystem::exists(place_ / "whole/iter_0000004/tokenizer.json"));
}

TEST_F(AdapterRun, WhatDoesNotFitIsRefused) {
  const std::string other = vectors("adapters/qwen3_tied"), lora = "--lora-rank 4 ";
  refused(words("train --num-layers 2 --hidden-size 32 --num-attention-heads 4 --vocab-size 96 "
                "--mock-data --seq-length 32 --micro-batch-size 2 --lr 1e-3 --train-iters 4 "
                "--lora-rank 4 --save new"),
          {"--lora-rank", "the run has none to start from", "give --model DIR with --finetune"});
  refused(command(lora + "--vocab-size 200"), {"can neither get more tokens (--vocab-size)"});
  refused(command(lora + "--moe-use-upcycling --num-experts 2"),
          {"nor experts (--moe-use-upcycling)"});
  refused(command(lora + "--mlp-chunks-for-training 2"),
          {"--mlp-chunks-for-training 2 computes feed-forward blocks without their adapters"});
  refused(command(lora + "--lora-target q_proj_of_another"),
          {"'q_proj_of_another' matches no module", "model.layers.0.self_attn.q_proj"});
  refused(command(lora + "--lora-target .*q_proj_of_another"), {"targets match no module", "21 ("});
  refused(command(lora + "--lora-target input_layernorm"),
          {"model.layers.0.input_layernorm", "cannot have one"});
  refused(command("--adapter " + other),
          {other, "with a different shape: 10",
           "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight: [4, 24] in the file, "
           "[4, 32] in the model"});
  refused(command(lora + "--adapter " + other), {"--lora-rank is 4", "states its own"});
  refused(command("--adapter " + base()), {base(), "adapter_config.json"});
  refused(words("train --model " + vectors("hf/qwen3_moe") +
                " --finetune --mock-data --tokenizer-type NullTokenizer --seq-length 16 "
                "--micro-batch-size 2 --lr 1e-3 --train-iters 4 --lora-rank 2 --lora-dropout 0.1"),
          {"a dropout of 0.1 and adapts model.layers.1.mlp.experts.", "--lora-exclude"});
  refused(command(lora + "--use-dora --pipeline-model-parallel-size 2 --pipeline-schedule zb-h1 "
                         "--ranks 4 --data-parallel-sharding-strategy optim_grads_params"),
          {"--use-dora", "zb-h1", "optim_grads_params"});
  refused(command(lora + "--lora-dropout 1"), {"--lora-dropout is 1", "[0, 1)"});
  refused(command(lora + "--lora-exclude q_projection"), {"excludes 'q_projection'", "q_proj"});
  refused(command(lora + "--lora-rank-pattern q_projection=3"), {"a rank for 'q_projection'"});
  refused(command(lora + "--lora-target q_proj --lora-alpha-pattern v_proj=3"),
          {"an alpha for 'v_proj'", "model.layers.0.self_attn.q_proj"});
  refused(command(lora + "--lora-target q_proj --lora-layers 1 2"), {"has layer 2"});
}

TEST_F(AdapterRun, ResumingNeedsTheSameAdapter) {
  succeeds(command("--lora-rank 4 --lora-target q_proj v_proj --save run"));
  succeeds(command("--save whole"));
  const std::string goes_on = "--train-iters 6 --load run ";
  refused(command(goes_on), {"run/iter_0000004", "is an adapter", "give the --lora flags"});
  refused(
      command(goes_on + "--lora-rank 8 --lora-target q_proj v_proj"),
      {"layers.0.self_attn.q_proj with rank 4 and alpha 4", "the run's has rank 8 and alpha 8"});
  refused(command(goes_on + "--lora-rank 4 --lora-alpha 8 --lora-target q_proj v_proj"),
          {"rank 4 and alpha 4 (scale 1)", "rank 4 and alpha 8 (scale 2)"});
  refused(command(goes_on + "--lora-rank 4 --lora-target q_proj"),
          {"has model.layers.0.self_attn.v_proj", "the adapter of this run does not"});
  refused(command(goes_on + "--lora-rank 4 --lora-target q_proj k_proj v_proj"),
          {"does not have model.layers.0.self_attn.k_proj"});
  refused(command("--train-iters 6 --load whole --lora-rank 4"),
          {"whole/iter_0000004", "is a whole model", "leave the --lora flags out"});
}

TEST_F(AdapterRun, ResumesWithItsBaseModelAtAnotherPlace) {
  std::filesystem::copy(base(), place_ / "model");
  const auto line = [](const std::string& model, const std::string& more) {
    return with(command("--lora-rank 4 --save run --load run " + more), {"--model", model});
  };
  succeeds(line("model", "--exit-interval 2"));
  std::filesystem::rename(place_ / "model", place_ / "moved");
  refused(line("moved", "--lora-rank 5"), {"rank 4"});
  std::filesystem::copy(place_ / "moved", place_ / "other");
  // One value of a weight differs.
  std::string weights = read_file(place_ / "other/model.safetensors");
  weights.back() = static_cast<char>(weights.back() ^ 1);
  write_file(place_ / "other/model.safetensors", weights);
  refused(line("other", ""), {"run/iter_0000002' is an adapter of the model that was in", "/model'",
                              "'other' has another config.json or other weights"});
  succeeds(line("moved", ""));
  const Json config = Json::read(place_ / ("run" + std::string(kLast) + "/adapter_config.json"));
  EXPECT_EQ(config["base_model_name_or_path"].as_string(), place_ / "moved");
}

// Rows of the token embedding that are trained, also where it is the output layer.
class AdapterRows : public AdapterRun, public ::testing::WithParamInterface<bool> {
 protected:
  static std::string model() {
    return vectors(GetParam() ? "post_training/models/qwen3" : "post_training/models/policy");
  }
  static Words line(const std::string& more) {
    return words("train --model " + model() +
                 " --finetune --mock-data --tokenizer-type NullTokenizer --seq-length 32 "
                 "--micro-batch-size 1 --global-batch-size 4 --threads 1 --clip-grad 0 "
                 "--weight-decay 0 --lr-decay-style constant " +
                 more);
  }
  static checkpoint::SafetensorsFile weights(const std::string& path) {
    return checkpoint::SafetensorsFile(path);
  }
  // Rows of a table [V,H].
  static std::vector<double> rows(const std::vector<double>& table, int64_t hidden,
                                  std::initializer_list<int64_t> ids) {
    std::vector<double> rows;
    for (const int64_t id : ids)
      rows.insert(rows.end(), table.begin() + id * hidden, table.begin() + (id + 1) * hidden);
    return rows;
  }
  static constexpr const char* kTable = "model.embed_tokens.weight";
  static constexpr const char* kRows =
      "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta";
};

TEST_P(AdapterRows, AreTrainedAsTheRowsOfAWholeModel) {
  const std::string step = "--optimizer sgd --sgd-momentum 0 --lr 0.5 --train-iters 1 --save ";
  const std::string adapter = "--lora-rank 2 --lora-token-indices 40 7-9 ";
  succeeds(line(step + "whole"));
  succeeds(line(step + "rows " + adapter));
  succeeds(line(step + "stages --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 " +
                adapter));
  const auto before = weights(model() + "/model.safetensors"),
             whole = weights(place_ / "whole/iter_0000001/model.safetensors");
  const int64_t hidden = before.find(kTable)->shape[1];
  const auto ids = {int64_t{40}, int64_t{7}, int64_t{8}, int64_t{9}};
  const std::vector<double> first = rows(before.doubles(kTable), hidden, ids),
                            expected = rows(whole.doubles(kTable), hidden, ids);
  double moved = 0;
  for (const char* run : {"rows", "stages"}) {
    const auto file =
        weights(place_ / (std::string(run) + "/iter_0000001/adapter_model.safetensors"));
    ASSERT_NE(file.find(kRows), nullptr);
    const std::vector<double> trained = file.doubles(kRows);
    ASSERT_EQ(trained.size(), expected.size());
    for (size_t i = 0; i < trained.size(); ++i) {
      EXPECT_NEAR(trained[i], expected[i], 1e-6) << run << " " << i;
      moved = std::max(moved, std::abs(trained[i] - first[i]));
    }
  }
  EXPECT_GT(moved, 1e-3);
  const Json config = Json::read(place_ / "rows/iter_0000001/adapter_config.json");
  EXPECT_EQ(config["trainable_token_indices"].dump(), "[40, 7, 8, 9]");
  EXPECT_EQ(config["trainable_token_indices"].as_array().size(), 4u);
}

// As part of the adapter and in a merged model they give the same bits.
TEST_P(AdapterRows, AreWrittenReadAndMerged) {
  succeeds(
      line("--lr 1e-1 --train-iters 2 --lora-rank 2 --lora-target o_proj --lora-token-indices "
           "1-60 --lora-alpha 1e-30 --save run"));
  const std::string folder = place_ / "run/iter_0000002";
  // Nothing but rows is left of the adapter: it continues without changing them.
  succeeds(line("--lr 0 --train-iters 1 --adapter " + folder + " --save next"));
  EXPECT_EQ(read_file(place_ / "next/iter_0000001/adapter_model.safetensors"),
            read_file(folder + "/adapter_model.safetensors"));
  succeeds(words("merge-adapter --adapter " + folder + " --save merged"));
  const std::vector<double> trained = weights(folder + "/adapter_model.safetensors").doubles(kRows),
                            merged = weights(place_ / "merged/model.safetensors").doubles(kTable);
  const int64_t hidden = std::ssize(trained) / 60;
  EXPECT_TRUE(std::equal(trained.begin(), trained.end(), merged.begin() + hidden));
  const auto loss = [this](const std::string& flags) {
    std::filesystem::remove(place_ / "log.jsonl");
    succeeds(with(line("--skip-train --eval-iters 2 --lr 0 --train-iters 1 --log-jsonl log.jsonl"),
                  words(flags)));
    std::istringstream lines(read_file(place_ / "log.jsonl"));
    for (std::string text; std::getline(lines, text);)
      if (const Json record = Json::parse(text); record["type"].as_string() == "validation")
        return record["loss"].dump();
    return std::string("none");
  };
  const std::string of_merged = loss("--model merged");
  EXPECT_EQ(loss("--adapter " + folder), of_merged);
  EXPECT_NE(loss(""), of_merged);
}

INSTANTIATE_TEST_SUITE_P(Models, AdapterRows, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Tied" : "Untied"; });

TEST_F(AdapterRun, RowsThatCannotBeTrainedAreRefused) {
  const std::string lora = "--lora-rank 4 --lora-token-indices ";
  refused(command(lora + "5 96"),
          {"the row of token 96 of model.embed_tokens", "96 rows", "[0, 96)"});
  refused(command(lora + "5 --lora-target q_proj embed_tokens"),
          {"rows of model.embed_tokens", "one of its targets"});
  refused(command(lora + "5 --lora-modules-to-save model.embed_tokens"),
          {"rows of model.embed_tokens", "trained whole"});
  refused(command(lora + "5 x"), {"--lora-token-indices has 'x'"});
  refused(command(lora + "5 4-6"), {"--lora-token-indices has 5 twice"});
  succeeds(command(lora + "5 6 --save run"));
  refused(command("--train-iters 6 --load run " + lora + "6 5"),
          {"the rows of other tokens", "--lora-token-indices"});
}

}  // namespace
}  // namespace megatron::testing::adapter_run_test
