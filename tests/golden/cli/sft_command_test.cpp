// `megatron sft` makes a fine-tuned model from chats.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>

#include "base/json.h"
#include "golden/cli/log_records.h"
#include "golden/cli/process.h"
#include "golden/selftest/support.h"

namespace megatron::testing {
namespace {

class Sft : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream file(place_ / "chats.jsonl");
    for (int i = 0; i < 60; ++i)
      file << R"({"messages": [{"role": "user", "content": "next )" << i * 7 % 97
           << R"("}, {"role": "assistant", "content": ")" << i * 7 % 97 + 1 << "\"}]}\n";
  }

  Words command(const std::string& folder, const std::string& more = "") const {
    return with({"sft", "--tokenizer-model", vectors("post_training/sft/chatml"), "--save", folder},
                words("--data-path chats.jsonl --num-layers 2 --hidden-size 32 "
                      "--num-attention-heads 4 --vocab-size 512 --seq-length 96 "
                      "--micro-batch-size 2 --global-batch-size 4 --train-iters 6 --lr 1e-3 "
                      "--log-interval 1 " +
                      more));
  }
  std::vector<Json> records(const std::string& folder, const std::string& type) const {
    return log_records(place_ / folder, type);
  }
  std::vector<std::string> losses(const std::string& folder) const {
    std::vector<std::string> all;
    for (const Json& step : records(folder, "step")) all.push_back(step["loss"].dump());
    return all;
  }
  void refused(const Words& line, const Words& parts) {
    const Outcome r = place_.run(line);
    EXPECT_EQ(r.code, 2) << r.out << r.err;
    for (const std::string& part : parts)
      EXPECT_NE(r.err.find(part), std::string::npos) << part << " in\n" << r.err;
  }

  Workplace place_;
};

// The config.json of transformers before version 5 names the stored type torch_dtype.
TEST_F(Sft, ADirectoryOfOlderTransformersKeepsItsForm) {
  const Outcome base = place_.run(words(
      "train --mock-data --recipe twins/llama3.1_8b_sft_8xh100 --save base --tokenizer-model " +
      vectors("post_training/sft/chatml")));
  ASSERT_EQ(base.code, 0) << base.err;
  const Json config = Json::read(place_ / "base/iter_0000003/config.json");
  ASSERT_EQ(config["torch_dtype"].as_string(), "bfloat16");
  const Outcome tuned = place_.run(
      words("sft --recipe llama3.1_8b_sft_8xh100 --model base/iter_0000003 --data-path chats.jsonl "
            "--seq-length 96 --train-iters 2 --lr-warmup-iters 1 --device cpu --save tuned"));
  ASSERT_EQ(tuned.code, 0) << tuned.err;
  EXPECT_EQ(Json::read(place_ / "tuned/iter_0000002/config.json"), config);
}

TEST_F(Sft, TrainsAndGoesOnWithTheSameBits) {
  const Outcome whole = place_.run(command("whole"));
  ASSERT_EQ(whole.code, 0) << whole.err;
  for (const char* part : {"60 chats", "% of which carry loss", "generation", "rows of 96 tokens"})
    EXPECT_NE(whole.err.find(part), std::string::npos) << part << " in\n" << whole.err;
  const std::vector<std::string> expected = losses("whole");
  ASSERT_EQ(expected.size(), 6u);
  ASSERT_EQ(place_.run(command("parts", "--exit-interval 3")).code, 0);
  const Outcome rest = place_.run(command("parts"));
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_NE(rest.err.find("resuming from"), std::string::npos) << rest.err;
  EXPECT_EQ(losses("parts"), expected);
  EXPECT_EQ(read_file(place_ / "parts/iter_0000006/model.safetensors"),
            read_file(place_ / "whole/iter_0000006/model.safetensors"));
  EXPECT_TRUE(std::filesystem::exists(place_ / "whole/iter_0000006/chat_template.jinja"));
}

TEST_F(Sft, EpochsAreTheStepsOfAllRows) {
  const auto by = [&](const std::string& folder, const std::string& length) {
    Words line = command(folder);
    const auto at = std::ranges::find(line, "--train-iters");
    line.erase(at, at + 2);
    return with(line, words(length));
  };
  const Outcome whole = place_.run(by("whole", "--epochs 2"));
  ASSERT_EQ(whole.code, 0) << whole.err;
  const size_t at = whole.err.find("train set: ");
  ASSERT_NE(at, std::string::npos) << whole.err;
  const int rows = std::stoi(whole.err.substr(at + 11)), steps = (2 * rows + 3) / 4;
  EXPECT_NE(whole.err.find("--epochs 2: " + std::to_string(rows) + " rows / 4 a step = "),
            std::string::npos)
      << whole.err;
  const std::vector<std::string> expected = losses("whole");
  ASSERT_EQ(std::ssize(expected), steps);
  ASSERT_EQ(place_.run(by("iters", "--train-iters " + std::to_string(steps))).code, 0);
  EXPECT_EQ(losses("iters"), expected);
  ASSERT_EQ(place_.run(by("parts", "--epochs 2 --exit-interval 2")).code, 0);
  ASSERT_EQ(losses("parts").size(), 2u);
  const Outcome rest = place_.run(by("parts", "--epochs 2"));
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_NE(rest.err.find("resuming from"), std::string::npos) << rest.err;
  EXPECT_EQ(losses("parts"), expected);
  const std::string model = fmt::format("/iter_{:07}/model.safetensors", steps);
  EXPECT_EQ(read_file(place_ / ("parts" + model)), read_file(place_ / ("whole" + model)));
  refused(by("out", "--epochs 0"), {"--epochs is 0"});
  refused(by("out", "--epochs 2 --lr-warmup-iters 99"), {"--lr-warmup-iters is 99", "(--epochs)"});
  refused(command("out", "--epochs 2"), {"--train-iters 6 and --epochs 2"});
  refused(with({"plan"}, words("--task sft --epochs 2 --num-layers 2 --hidden-size 32 "
                               "--num-attention-heads 4 --vocab-size 512 --seq-length 96 "
                               "--micro-batch-size 2")),
          {"--epochs 2", "--train-iters"});
  const Outcome missing = place_.run({"sft", "--epochs", "2"});
  EXPECT_EQ(missing.err.find("--train-iters INT"), std::string::npos) << missing.err;
  EXPECT_NE(missing.err.find("--lr FLOAT"), std::string::npos) << missing.err;
}

// The loss of each source, the same in every layout; together, that of the whole set.
TEST_F(Sft, ValidatesEachSource) {
  const auto record = [](int i, const std::string& source) {
    return R"({"source": ")" + source + R"(", "messages": [{"role": "user", "content": "next )" +
           std::to_string(i) + R"("}, {"role": "assistant", "content": ")" +
           std::string(static_cast<size_t>(1 + i % 7), 'a') + "\"}]}\n";
  };
  std::ofstream valid(place_ / "valid.jsonl");
  for (int i = 0; i < 24; ++i) valid << record(i, i % 3 == 0 ? "math" : "code");
  valid.close();
  const auto line = [&](const std::string& folder, const std::string& more) {
    Words all = command(folder,
                        "--train-iters 1 --valid-data-path valid.jsonl --eval-interval 1 "
                        "--full-validation " +
                            more);
    std::ranges::replace(all, std::string("--data-path"), std::string("--train-data-path"));
    return all;
  };
  const auto evaluated = [&](const std::string& folder, const std::string& more) {
    const Outcome r = place_.run(line(folder, more));
    EXPECT_EQ(r.code, 0) << r.err;
    std::map<std::string, std::pair<double, double>> sets;  // loss, tokens
    for (const Json& found : records(folder, "validation"))
      sets[found["set"].as_string()] = {found["loss"].as_number(), found["tokens"].as_number()};
    return sets;
  };
  const std::string several = "--multiple-validation-sets ";
  auto all = evaluated("all", ""), parts = evaluated("parts", several);
  ASSERT_EQ(parts.size(), 2u);
  const auto [math, math_tokens] = parts["math"];
  const auto [code, code_tokens] = parts["code"];
  EXPECT_EQ(math_tokens + code_tokens, all["valid"].second);
  EXPECT_GT(math_tokens, 0);
  EXPECT_NE(math, code);
  EXPECT_NEAR((math * math_tokens + code * code_tokens) / all["valid"].second, all["valid"].first,
              1e-5);
  for (const std::string layout :
       {"--ranks 2", "--pipeline-model-parallel-size 2", "--context-parallel-size 2"}) {
    auto other = evaluated(layout.substr(2), several + layout);
    ASSERT_EQ(other.size(), 2u) << layout;
    for (const auto& [name, of_source] : parts) {
      EXPECT_NEAR(other[name].first, of_source.first, 1e-5) << layout << name;
      EXPECT_EQ(other[name].second, of_source.second) << layout << name;
    }
  }
  std::ofstream many(place_ / "valid.jsonl");
  for (int i = 0; i < 21; ++i) many << record(i, "source" + std::to_string(i));
  many.close();
  refused(line("none", several), {"--multiple-validation-sets", "21 sources", "at most 20"});
}

// A step over all rows, which hardly changes the weights, has the losses that validation of the
// same rows gives each source, in every layout; their mean by tokens is the step's.
TEST_F(Sft, LogsTheLossOfEachSource) {
  std::ofstream file(place_ / "mixed.jsonl");
  for (int i = 0; i < 24; ++i)
    file << R"({"source": ")" << (i % 3 == 0 ? "math" : "code")
         << R"(", "messages": [{"role": "user", "content": "next )" << i
         << R"("}, {"role": "assistant", "loss_scale": )" << (i % 3 == 0 ? 1 : 0.5)
         << R"(, "content": ")" << std::string(static_cast<size_t>(1 + i % 7), 'a') << "\"}]}\n";
  file.close();
  const auto run = [&](const std::string& folder, const std::string& more) {
    Words line = command(folder,
                         "--global-batch-size 24 --train-iters 1 --lr 1e-12 --chat-packing none "
                         "--valid-data-path mixed.jsonl --eval-interval 1 --full-validation "
                         "--multiple-validation-sets --hidden-dropout 0 --attention-dropout 0 " +
                             more);
    std::ranges::replace(line, std::string("--data-path"), std::string("--train-data-path"));
    std::ranges::replace(line, std::string("chats.jsonl"), std::string("mixed.jsonl"));
    const Outcome r = place_.run(line);
    EXPECT_EQ(r.code, 0) << r.err;
    return r.out;
  };
  EXPECT_NE(run("one", "").find("loss/math"), std::string::npos);
  std::map<std::string, std::pair<double, double>> sets;
  for (const Json& found : records("one", "validation"))
    sets[found["set"].as_string()] = {found["loss"].as_number(), found["tokens"].as_number()};
  ASSERT_EQ(sets.size(), 2u);
  const auto [math, math_tokens] = sets["math"];
  const auto [code, code_tokens] = sets["code"];
  const double all = (math * math_tokens + code * code_tokens) / (math_tokens + code_tokens);
  for (const std::string layout :
       {"one", "--ranks 2", "--pipeline-model-parallel-size 2", "--context-parallel-size 2",
        "--tensor-model-parallel-size 2 --sequence-parallel"}) {
    const std::string folder = layout == "one" ? layout : layout.substr(2, 8);
    if (layout != "one") run(folder, layout);
    const Json step = records(folder, "step").at(0);
    EXPECT_NEAR(step["metrics"]["loss/math"].as_number(), math, 1e-5) << layout;
    EXPECT_NEAR(step["metrics"]["loss/code"].as_number(), code, 1e-5) << layout;
    EXPECT_NEAR(step["loss"].as_number(), all, 1e-5) << layout;
  }
  EXPECT_EQ(place_.run(command("plain")).out.find("loss/"), std::string::npos);
}

// A new model's next tokens are nearly as random as they can be.
TEST_F(Sft, LogsTheEntropyOfTokensWithLoss) {
  const auto entropy = [&](const std::string& folder, const std::string& layout) {
    const Outcome r = place_.run(command(folder, "--log-entropy --train-iters 2 " + layout));
    EXPECT_EQ(r.code, 0) << r.err;
    EXPECT_NE(r.out.find("entropy"), std::string::npos) << r.out;
    std::vector<double> values;
    for (const Json& step : records(folder, "step"))
      values.push_back(step["metrics"]["entropy"].as_number());
    return values;
  };
  const std::vector<double> one = entropy("one", "");
  ASSERT_EQ(one.size(), 2u);
  EXPECT_NEAR(one[0], std::log(512), 0.2);
  EXPECT_NE(one[0], one[1]);
  for (const std::string layout :
       {"--ranks 2", "--context-parallel-size 2", "--pipeline-model-parallel-size 2",
        "--tensor-model-parallel-size 2 --sequence-parallel"}) {
    const std::vector<double> other = entropy(layout.substr(2, 8), layout);
    for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(other[i], one[i], 1e-4) << layout;
  }
  ASSERT_EQ(place_.run(command("plain", "--train-iters 2")).code, 0);
  EXPECT_EQ(read_file(place_ / "plain/iter_0000002/model.safetensors"),
            read_file(place_ / "one/iter_0000002/model.safetensors"));
}

TEST_F(Sft, AResumedRunNoticesOtherExamples) {
  const std::string text = read_file(place_ / "chats.jsonl");
  const Outcome first = place_.run(command("out", "--exit-interval 3"));
  ASSERT_EQ(first.code, 0) << first.err;
  const std::string more = text + text.substr(0, text.find('\n') + 1);
  std::ofstream(place_ / "chats.jsonl") << more;
  refused(command("out"), {"out/iter_0000003", "chats.jsonl has changed since",
                           "megatron sft --model", "--save ANOTHER_DIRECTORY"});
  std::ofstream(place_ / "chats.jsonl") << text;
  std::ofstream(place_ / "more.jsonl") << more;
  Words line = command("out");
  line.insert(std::ranges::find(line, "chats.jsonl") + 1, "more.jsonl");
  refused(line, {"more.jsonl is new"});
  std::ranges::replace(line, std::string("--data-path"), std::string("--train-data-path"));
  std::erase(line, "chats.jsonl");
  refused(line, {"chats.jsonl is not among its files any more"});
  std::filesystem::rename(place_ / "chats.jsonl", place_ / "renamed.jsonl");
  line = command("out");
  std::ranges::replace(line, std::string("chats.jsonl"), std::string("renamed.jsonl"));
  const Outcome rest = place_.run(line);
  EXPECT_EQ(rest.code, 0) << rest.err;
  EXPECT_EQ(losses("out").size(), 6u);
}

TEST_F(Sft, MegatronsRowsAreRecordsInTheirOrder) {
  Words line = command("out",
                       "--sft --tokenizer-type SFTTokenizer --chat-truncation keep_start "
                       "--sft-tokenizer-prompt-format default");
  line[0] = "train";
  const Outcome r = place_.run(line);
  ASSERT_EQ(r.code, 0) << r.err;
  for (const char* part : {"every token carries loss", "60 rows of 96 tokens per epoch"})
    EXPECT_NE(r.err.find(part), std::string::npos) << part << " in\n" << r.err;
  EXPECT_EQ(losses("out").size(), 6u);
  refused(command("none", "--sft"), {"nemotron-h-aligned", "<SPECIAL_10>"});
  refused(command("none", "--sft --chat-packing wrapped"), {"--chat-packing wrapped", "--sft"});
  refused(command("none", "--sft --chat-template own.jinja"), {"--chat-template", "default"});
  refused(with({"train"}, words("--sft --task dpo --data-path chats.jsonl")), {"--sft", "dpo"});
}

TEST_F(Sft, FineTunesAModelDirectoryWithValidation) {
  ASSERT_EQ(place_.run(command("base")).code, 0);
  const Outcome r = place_.run(
      words("sft --model base/iter_0000006 --data-path chats.jsonl --save tuned --seq-length 96 "
            "--micro-batch-size 2 --global-batch-size 4 --train-iters 2 --lr 1e-4 --log-interval 1 "
            "--split 9,1,0 --eval-interval 2 --eval-iters 1 --chat-packing bfd_split"));
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.err.find("valid set: "), std::string::npos) << r.err;
  EXPECT_LT(std::stod(losses("tuned").at(0)), std::stod(losses("base").at(1)));
}

// It sees the tokenizer's special tokens, and is what the model is served with.
TEST_F(Sft, AGivenTemplateIsSavedWithTheModel) {
  const std::string text =
      "{% for m in messages %}{{ m.role }}: {% generation %}{{ m.content + eos_token }}"
      "{% endgeneration %}{% endfor %}";
  std::ofstream(place_ / "own.jinja") << text;
  const Outcome r = place_.run(command("out", "--chat-template own.jinja"));
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(read_file(place_ / "out/iter_0000006/chat_template.jinja"), text);
  const Outcome shown = place_.run(command("none", "--chat-template own.jinja --show 1"));
  EXPECT_NE(shown.out.find("[[1<|im_end|>]]"), std::string::npos) << shown.out;
}

TEST_F(Sft, ShowsWhatCarriesLoss) {
  const Outcome r = place_.run(command("none", "--show 2"));
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.out.find("next 7<|im_end|>\n<|im_start|>assistant\n[[8<|im_end|>]]"),
            std::string::npos)
      << r.out;
  EXPECT_EQ(r.out.find("next 14"), std::string::npos) << r.out;
  EXPECT_FALSE(std::filesystem::exists(place_ / "none"));
}

TEST_F(Sft, BadInputIsRefusedBeforeAStep) {
  std::ofstream(place_ / "bad.jsonl")
      << R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})"
      << "\n"
      << R"({"messages": [{"role": "user", "content": "a"}]})"
      << "\n";
  Words line = command("out");
  std::ranges::replace(line, std::string("chats.jsonl"), std::string("bad.jsonl"));
  refused(line, {"bad.jsonl:2", "assistant"});
  std::ranges::replace(line, std::string("bad.jsonl"), std::string("missing.jsonl"));
  refused(line, {"missing.jsonl", "--data-path"});
  const Words of_model = words(
      "sft --model nowhere --save out --data-path chats.jsonl --seq-length 96 --micro-batch-size 2 "
      "--train-iters 6 --lr 1e-3");
  for (const std::string more : {"", "--lora-rank 2", "--show 1"})
    refused(with(of_model, words(more)), {"--model nowhere "});
  std::ofstream(place_ / "nowhere") << "x";
  refused(of_model, {"--model nowhere is a file"});
  const Outcome help = place_.run({"sft", "--help"});
  EXPECT_NE(help.out.find("files of chats"), std::string::npos) << help.out;
  EXPECT_EQ(help.out.find("--mock-data"), std::string::npos) << help.out;
  refused({"sft"}, {"--data-path FILE", "sft --model DIR --data-path"});
  refused(command("out", "--mock-data"), {"--mock-data", "--task sft"});
  refused(command("out", "--reset-attention-mask"), {"--reset-attention-mask", "--task sft"});
  refused(command("out", "--chat-packing tight"), {"tight", "bfd_split"});
  refused(words("train --chat-packing wrapped --mock-data --preset gpt2-124m --seq-length 16 "
                "--micro-batch-size 1 --train-iters 1 --lr 1e-3"),
          {"--chat-packing", "--task sft"});
  refused(with({"sft"}, words("--show 1 --data-path chats.jsonl")), {"--model", "tokenizer"});
  EXPECT_FALSE(std::filesystem::exists(place_ / "out/log.jsonl"));
}

}  // namespace
}  // namespace megatron::testing
