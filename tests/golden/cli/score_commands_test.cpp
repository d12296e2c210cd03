// `megatron reward` and `megatron classify` put a score head on a language model and train it.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "base/json.h"
#include "checkpoint/model_directory.h"
#include "checkpoint/safetensors.h"
#include "golden/cli/log_records.h"
#include "golden/cli/process.h"
#include "golden/selftest/support.h"
#include "models/model.h"
#include "text.h"

namespace megatron::testing {
namespace {

class ScoreCommands : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream pairs(place_ / "pairs.jsonl"), labels(place_ / "labels.jsonl");
    for (int i = 0; i < 40; ++i) {
      pairs << R"({"prompt": "next )" << i << R"(", "chosen": " is )" << i + 1
            << R"(", "rejected": " may be )" << i * 7 % 40 << R"(", "margin": 0.1})" << "\n";
      labels << R"({"text": ")" << (i % 3 == 0 ? "one two " : "two one ") << i << R"(", "label": ")"
             << (i % 3 == 0 ? "up" : "down") << "\"}\n";
    }
  }

  Words command(const std::string& name, const std::string& more) const {
    return with({name, "--tokenizer-model", vectors("post_training/sft/chatml")},
                words("--seq-length 64 --micro-batch-size 2 --global-batch-size 4 --train-iters 6 "
                      "--lr 3e-3 --log-interval 1 --hidden-dropout 0 --attention-dropout 0 " +
                      more));
  }
  static std::string small(const std::string& more) {
    return "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --vocab-size 512 " + more;
  }
  std::vector<Json> records(const std::string& folder, const std::string& type) const {
    return log_records(place_ / folder, type);
  }
  std::vector<double> losses(const std::string& folder) const {
    std::vector<double> all;
    for (const Json& record : records(folder, "step")) all.push_back(record["loss"].as_number());
    return all;
  }
  Json config(const std::string& folder) const {
    return Json::read(place_ / (folder + "/iter_0000006/config.json"));
  }
  void refused(const Words& line, const Words& parts) {
    const Outcome r = place_.run(line);
    EXPECT_EQ(r.code, 2) << r.out << r.err;
    for (const std::string& part : parts)
      EXPECT_NE(r.err.find(part), std::string::npos) << part << " in\n" << r.err;
  }

  Workplace place_;
};

TEST_F(ScoreCommands, ARewardModelResumesWithTheSameBits) {
  const std::string data = "--data-path pairs.jsonl ";
  const Outcome whole = place_.run(command(
      "reward", small(data + "--save whole --split 9,1,0 --eval-interval 3 --eval-iters 1")));
  ASSERT_EQ(whole.code, 0) << whole.err;
  EXPECT_NE(whole.err.find("40 pairs of texts"), std::string::npos) << whole.err;
  EXPECT_NE(whole.out.find("| accuracy "), std::string::npos) << whole.out;
  const std::vector<Json> validations = records("whole", "validation");
  ASSERT_EQ(validations.size(), 2u);
  EXPECT_TRUE(validations[1].contains("accuracy") && !validations[1].contains("perplexity"));
  EXPECT_EQ(config("whole")["architectures"].dump(), R"(["GPT2ForSequenceClassification"])");
  EXPECT_EQ(config("whole")["id2label"].as_object().size(), 1u);
  ASSERT_EQ(place_
                .run(command("reward", small(data + "--save parts --split 9,1,0 --eval-interval "
                                                    "3 --eval-iters 1 --exit-interval 2")))
                .code,
            0);
  const Outcome rest = place_.run(command(
      "reward", small(data + "--save parts --split 9,1,0 --eval-interval 3 --eval-iters 1")));
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_EQ(losses("parts"), losses("whole"));
  EXPECT_EQ(read_file(place_ / "parts/iter_0000006/model.safetensors"),
            read_file(place_ / "whole/iter_0000006/model.safetensors"));
}

TEST_F(ScoreCommands, EachLayoutHasTheLossesOfOneRank) {
  const std::string data = small("--data-path labels.jsonl --split 9,1,0 --eval-interval 3 ");
  ASSERT_EQ(place_.run(command("classify", data + "--eval-iters 1 --save one")).code, 0);
  const std::vector<double> expected = losses("one");
  ASSERT_EQ(expected.size(), 6u);
  for (const char* layout :
       {"--context-parallel-size 2", "--pipeline-model-parallel-size 2 --ranks 4",
        "--tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer"}) {
    const std::string folder = "out" + std::to_string(std::hash<std::string>()(layout));
    const Outcome r =
        place_.run(command("classify", data + "--eval-iters 1 --save " + folder + " " + layout));
    ASSERT_EQ(r.code, 0) << r.err;
    const std::vector<double> found = losses(folder);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i)
      EXPECT_NEAR(found[i], expected[i], 2e-5 * expected[i]) << layout << ", step " << i + 1;
    for (const char* value : {"loss", "accuracy", "counted"})
      EXPECT_NEAR(records(folder, "validation")[1][value].as_number(),
                  records("one", "validation")[1][value].as_number(), 2e-5)
          << layout << ", " << value;
  }
}

// Lists of labels make a head of which each class applies or not, for decoders as for encoders.
TEST_F(ScoreCommands, TextsMayHaveSeveralLabels) {
  std::ofstream lists(place_ / "lists.jsonl");
  constexpr const char* kLists[] = {R"(["a"])", R"(["c", "a"])", "[]", R"(["b"])"};
  for (int i = 0; i < 40; ++i)
    lists << R"({"text": "one two )" << i << R"(", "label": )" << kLists[i % 4] << "}\n";
  lists.close();
  const std::string data = small("--data-path lists.jsonl --split 9,1,0 --eval-interval 3 ");
  const Outcome r = place_.run(command("classify", data + "--eval-iters 1 --save one"));
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.out.find("| f1 "), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("| exact match "), std::string::npos) << r.out;
  EXPECT_EQ(config("one")["problem_type"].as_string(), "multi_label_classification");
  EXPECT_EQ(config("one")["id2label"].dump(), R"({"0": "a", "1": "b", "2": "c"})");
  const std::vector<double> expected = losses("one");
  ASSERT_EQ(expected.size(), 6u);
  for (const char* layout :
       {"--context-parallel-size 2",
        "--tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 2 "
        "--ranks 4"}) {
    const std::string folder = "out" + std::to_string(std::hash<std::string>()(layout));
    const Outcome other =
        place_.run(command("classify", data + "--eval-iters 1 --save " + folder + " " + layout));
    ASSERT_EQ(other.code, 0) << other.err;
    const std::vector<double> found = losses(folder);
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(found.at(i), expected[i], 2e-5 * expected[i]) << layout << ", step " << i + 1;
    for (const char* value : {"loss", "f1", "exact match"})
      EXPECT_NEAR(records(folder, "validation")[1][value].as_number(),
                  records("one", "validation")[1][value].as_number(), 2e-5)
          << layout << ", " << value;
  }
  const Words eval = {"eval",
                      "--load",
                      "one/iter_0000006",
                      "--tokenizer-model",
                      vectors("post_training/sft/chatml"),
                      "--input"};
  const Outcome json = place_.run(with(eval, {"lists.jsonl", "--json"}));
  ASSERT_EQ(json.code, 0) << json.err;
  const Json found = Json::parse(json.out);
  EXPECT_EQ(found["texts"].as_integer(), 40);
  EXPECT_EQ(found["classes"].as_array()[0]["texts"].as_integer(), 20);
  EXPECT_GE(found["exact_match"].as_number(), 0);
  EXPECT_NE(place_.run(with(eval, {"lists.jsonl"})).out.find("exact match "), std::string::npos);
  // The kind of the labels is the model's.
  const Outcome single = place_.run(with(eval, {"labels.jsonl"}));
  EXPECT_EQ(single.code, 2);
  expect_contains(single.err, {"labels.jsonl:1", "\"up\"", "multi_label_classification", "list"});
  const auto refused_data = [&](const std::string& label, const Words& parts) {
    std::ofstream(place_ / "bad.jsonl") << R"({"text": "a", "label": )" << label << "}\n";
    refused(with(eval, {"bad.jsonl"}), parts);
  };
  refused_data(R"(["a", "a"])", {"bad.jsonl:1", "twice"});
  refused_data(R"(["d"])", {"bad.jsonl:1", "'d' is none of the model's classes"});
  refused_data(R"([["a"]])", {"bad.jsonl:1", "list of them"});
  ASSERT_EQ(place_.run(command("classify", small("--data-path labels.jsonl --save plain"))).code,
            0);
  refused({"eval", "--load", "plain/iter_0000006", "--tokenizer-model",
           vectors("post_training/sft/chatml"), "--input", "lists.jsonl"},
          {"lists.jsonl:1", "the label is a list", "each text one class"});
}

// A language model's directory: its weights, and a new head in place of its output layer.
TEST_F(ScoreCommands, ALanguageModelBecomesAClassifier) {
  ASSERT_EQ(place_
                .run(command("train", small("--mock-data --save base --position-embedding-type "
                                            "rope --normalization RMSNorm --swiglu "
                                            "--disable-bias-linear "
                                            "--untie-embeddings-and-output-weights")))
                .code,
            0);
  const Outcome r = place_.run(
      command("classify", "--model base/iter_0000006 --save cls --data-path labels.jsonl"));
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.err.find("its output layer is replaced by score.weight"), std::string::npos) << r.err;
  const Json c = config("cls");
  EXPECT_EQ(c["architectures"].dump(), R"(["LlamaForSequenceClassification"])");
  EXPECT_EQ(c["id2label"].dump(), R"({"0": "down", "1": "up"})");
  EXPECT_EQ(c["label2id"].dump(), R"({"down": 0, "up": 1})");
  const Outcome seen = place_.run({"inspect", "cls/iter_0000006"});
  EXPECT_EQ(seen.code, 0) << seen.err;
  // The classifier goes on with its own head; other classes do not fit it.
  const Outcome again = place_.run(
      command("classify", "--model cls/iter_0000006 --save more --data-path labels.jsonl"));
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(again.err.find("is replaced by"), std::string::npos) << again.err;
  EXPECT_LT(losses("more").back(), losses("cls").front());
  refused(command("classify",
                  "--model cls/iter_0000006 --save x --data-path labels.jsonl "
                  "--labels up down"),
          {"--labels is up down", "down up"});
  refused(command("reward", "--model cls/iter_0000006 --save x --data-path pairs.jsonl"),
          {"a head of 2 classes"});
  refused(command("sft", "--model cls/iter_0000006 --save x --data-path pairs.jsonl"),
          {"--task sft"});
}

// As PEFT has it: the adapter's directory has the head, which the base model lacks.
TEST_F(ScoreCommands, AnAdapterBringsANewHead) {
  ASSERT_EQ(place_
                .run(command("train", small("--mock-data --save base --position-embedding-type "
                                            "rope --normalization RMSNorm --swiglu "
                                            "--disable-bias-linear "
                                            "--untie-embeddings-and-output-weights")))
                .code,
            0);
  const std::string line =
      "--model base/iter_0000006 --lora-rank 4 --data-path labels.jsonl --save ";
  const Outcome r = place_.run(command("classify", line + "whole"));
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.err.find("its output layer is replaced by score.weight"), std::string::npos) << r.err;
  EXPECT_LT(losses("whole").back(), losses("whole").front());
  const std::string folder = place_ / "whole/iter_0000006";
  const Json adapter = Json::read(folder + "/adapter_config.json");
  EXPECT_EQ(adapter["task_type"].as_string(), "SEQ_CLS");
  EXPECT_EQ(adapter["modules_to_save"].dump(), R"(["score"])");
  EXPECT_EQ(config("whole")["id2label"].dump(), R"({"0": "down", "1": "up"})");
  const checkpoint::SafetensorsFile file(folder + "/adapter_model.safetensors");
  EXPECT_EQ(file.find("base_model.model.score.weight")->shape, (Shape{2, 32}));
  // It resumes, with the same bits, and opens by itself.
  ASSERT_EQ(place_.run(command("classify", line + "parts --exit-interval 2")).code, 0);
  const Outcome rest = place_.run(command("classify", line + "parts"));
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_EQ(read_file(place_ / "parts/iter_0000006/adapter_model.safetensors"),
            read_file(folder + "/adapter_model.safetensors"));
  const auto accuracy = [&](const std::string& model) {
    const Outcome seen = place_.run(words("eval --input labels.jsonl --json " + model));
    EXPECT_EQ(seen.code, 0) << seen.err;
    return seen.out;
  };
  const std::string found = accuracy("--load whole");
  EXPECT_NE(found.find("accuracy"), std::string::npos) << found;
  // PEFT writes no config.json beside an adapter: classes have no names then.
  std::filesystem::create_directory(place_ / "peft");
  for (const char* name : {"/adapter_config.json", "/adapter_model.safetensors"})
    std::filesystem::copy(folder + name, place_ / ("peft" + std::string(name)));
  const models::Model model = models::model_from_directory(place_ / "peft");
  EXPECT_EQ(model->facts().label_names, (std::vector<std::string>{"LABEL_0", "LABEL_1"}));
  // A run that starts from it and changes nothing ends with it.
  const Outcome kept = place_.run(
      command("classify",
              "--model base/iter_0000006 --adapter peft --data-path labels.jsonl --save kept "
              "--lr 0 --lr-decay-style constant"));
  ASSERT_EQ(kept.code, 0) << kept.err;
  EXPECT_EQ(kept.err.find("is replaced by"), std::string::npos) << kept.err;
  EXPECT_EQ(read_file(place_ / "kept/iter_0000006/adapter_model.safetensors"),
            read_file(folder + "/adapter_model.safetensors"));
  refused(command("classify", line + "x --lora-target score"), {"--task classify", "'score'"});
  // A config.json beside it may be a copy of one that says how the base was stored.
  Json copied = config("whole");
  copied.set("quantization_config", Json::parse(R"({"quant_method": "fp8"})"));
  write_file(place_ / "peft/config.json", copied.dump());
  EXPECT_EQ(checkpoint::ModelDirectory(place_ / "peft").config().find("quantization_config"),
            nullptr);
}

// The head is trained on a frozen model, which keeps every bit.
TEST_F(ScoreCommands, AHeadIsTrainedAlone) {
  const std::string frozen = "--model base/iter_0000006 --freeze transformer.* --save ";
  ASSERT_EQ(place_.run(command("train", small("--mock-data --save base"))).code, 0);
  const auto tensors = [&](const std::string& folder) {
    const checkpoint::SafetensorsFile file(place_ / (folder + "/iter_0000006/model.safetensors"));
    std::map<std::string, std::vector<double>> all;
    for (const checkpoint::TensorInfo& info : file.tensors())
      all[info.name] = file.doubles(info.name);
    return all;
  };
  const auto base = tensors("base");
  for (const auto& [task, data] : {std::pair{"classify", "--data-path labels.jsonl "},
                                   std::pair{"reward", "--data-path pairs.jsonl "}}) {
    std::vector<double> expected;
    for (const std::string layout :
         {"", "--pipeline-model-parallel-size 2 ", "--ranks 2 --use-distributed-optimizer --bf16 ",
          "--tensor-model-parallel-size 2 --sequence-parallel "}) {
      const std::string folder = task + std::to_string(std::hash<std::string>()(layout));
      const Outcome r = place_.run(command(task, data + layout + frozen + folder));
      ASSERT_EQ(r.code, 0) << layout << r.err;
      EXPECT_NE(r.err.find("parameters are trained"), std::string::npos) << r.err;
      const std::vector<double> found = losses(folder);
      if (expected.empty()) expected = found;
      ASSERT_EQ(found.size(), 6u);
      for (size_t i = 0; i < found.size(); ++i)
        EXPECT_NEAR(found[i], expected[i],
                    (layout.find("bf16") == layout.npos ? 2e-5 : 2e-2) * expected[i])
            << task << " " << layout << ", step " << i + 1;
      auto trained = tensors(folder);
      EXPECT_EQ(trained.erase("score.weight"), 1u);
      if (layout.find("bf16") != layout.npos) continue;  // stores another type
      EXPECT_EQ(trained, base) << layout;
    }
    EXPECT_NE(expected.front(), expected.back());
  }
}

TEST_F(ScoreCommands, ShowWhatIsScored) {
  const Outcome r = place_.run({"reward", "--show", "1", "--data-path", "pairs.jsonl",
                                "--tokenizer-model", vectors("post_training/sft/chatml")});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.out.find("pairs.jsonl:1, chosen"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("[["), std::string::npos) << r.out;
}

TEST_F(ScoreCommands, BadInputIsRefusedBeforeAStep) {
  std::ofstream(place_ / "bad.jsonl") << R"({"chosen": "a", "rejected": "b"})" << "\n"
                                      << R"({"chosen": "a"})" << "\n";
  refused(command("reward", small("--save out --data-path bad.jsonl")),
          {"bad.jsonl:2", "rejected"});
  refused(command("classify", small("--save out --data-path labels.jsonl --labels up side")),
          {"labels.jsonl:2", "'down' is none of"});
  refused(command("classify", small("--save out --data-path labels.jsonl --labels up up")),
          {"--labels is up up"});
  refused(command("reward", small("--save out --data-path pairs.jsonl --chat-packing wrapped")),
          {"--chat-packing wrapped", "use bfd or none"});
  refused(command("reward", small("--save out --data-path pairs.jsonl "
                                  "--center-rewards-coefficient -1")),
          {"--center-rewards-coefficient is -1"});
  refused(command("reward", small("--save out --data-path pairs.jsonl --model-family granite")),
          {"granite"});
  refused(command("reward", small("--task sft --data-path pairs.jsonl")), {"--task sft"});
  refused({"reward"}, {"--data-path FILE", "chosen"});
  EXPECT_FALSE(std::filesystem::exists(place_ / "out/log.jsonl"));
}

}  // namespace
}  // namespace megatron::testing
