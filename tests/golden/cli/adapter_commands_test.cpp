// Commands that read an adapter (LoRA) instead of a whole model: generate, eval, serve.
#include <gtest/gtest.h>
#include <httplib.h>

#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "golden/cli/served_run.h"

namespace megatron::testing {
namespace {

// A model and an adapter of it, trained until it says something else.
class AdapterCommands : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    place_ = new Workplace;
    make_served_run(*place_, "--num-layers 2 --seq-length 64", "run");
    train_adapter("adapter", 1);
    std::ofstream(*place_ / "text.jsonl")
        << R"({"text": "Hello there, a man of letters."})" << "\n";
  }
  static void TearDownTestSuite() {
    delete place_;
    place_ = nullptr;
  }

  static void train_adapter(const std::string& name, int seed) {
    const Outcome r = place_->run(
        words("train --model run --finetune --lora-rank 4 --lora-alpha 32 --micro-batch-size 2 "
              "--seq-length 64 --train-iters 8 --lr 0.05 --mock-data --seed " +
              std::to_string(seed) + " --save " + name));
    ASSERT_EQ(r.code, 0) << r.err;
  }
  static Outcome run(const Words& command) {
    const Outcome r = place_->run(command);
    EXPECT_EQ(r.code, 0) << r.err;
    return r;
  }
  static std::string text_of(const std::string& flags) {
    return run(words("generate --threads 1 --prompt Hello --max-tokens 12 --temperature 0 " +
                     flags))
        .out;
  }
  static void refused(const std::string& command, const Words& parts) {
    const Outcome r = place_->run(words(command));
    EXPECT_EQ(r.code, 2) << r.out << r.err;
    for (const std::string& part : parts)
      EXPECT_NE(r.err.find(part), std::string::npos) << part << " is not in\n" << r.err;
  }

  static Workplace* place_;
};
Workplace* AdapterCommands::place_ = nullptr;

TEST_F(AdapterCommands, GenerateReadsAnAdapterWithItsBaseOrTheOneItNames) {
  const std::string adapted = text_of("--load run --adapter adapter");
  EXPECT_NE(adapted, text_of("--load run"));
  EXPECT_EQ(adapted, text_of("--adapter adapter"));
  EXPECT_EQ(adapted, text_of("--load adapter"));
}

TEST_F(AdapterCommands, FilesOfTheAdaptersDirectoryPrecedeTheBases) {
  const std::string whole = text_of("--adapter adapter");
  std::filesystem::copy(*place_ / "adapter", *place_ / "other",
                        std::filesystem::copy_options::recursive);
  const std::string checkpoint = *place_ / "other/iter_0000008";
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint))
    if (!entry.path().filename().string().starts_with("adapter_"))
      std::filesystem::remove_all(entry.path());
  EXPECT_EQ(text_of("--load run --adapter other/iter_0000008"), whole);  // the base's tokenizer
  std::string ends;
  for (int32_t id = 0; id < 300; ++id) ends += (id == 0 ? "" : ",") + std::to_string(id);
  write_file(checkpoint + "/generation_config.json", R"({"eos_token_id": [)" + ends + "]}");
  EXPECT_EQ(text_of("--load run --adapter other/iter_0000008"), "Hello\n");
}

TEST_F(AdapterCommands, EvalInAllItsModes) {
  const auto loss = [](const std::string& flags) {
    return Json::parse(run(words("eval --json --threads 1 --input text.jsonl " + flags)).out);
  };
  const double base = loss("--load run")["loss"].as_number(),
               adapted = loss("--load run --adapter adapter")["loss"].as_number();
  EXPECT_NE(base, adapted);
  EXPECT_EQ(adapted, loss("--load adapter")["loss"].as_number());
  const Json domain = loss("--load run --adapter adapter --compare run")["domains"].as_array()[0];
  EXPECT_NEAR(domain["difference"].as_number(), adapted - base, 1e-6);
  run(words("eval --threads 1 --against-engine --input text.jsonl --load run --adapter adapter"));
}

TEST_F(AdapterCommands, ServeAnswersAsGenerateDoes) {
  const std::string generated = text_of("--adapter adapter");
  Background server =
      place_->start(words("serve --load run --adapter adapter --port 0 --threads 1"));
  httplib::Client client("127.0.0.1", served_port(*place_, server));
  const httplib::Result result =
      client.Post("/v1/completions",
                  R"({"model": "adapter", "prompt": "Hello", "max_tokens": 12, "temperature": 0})",
                  "application/json");
  ASSERT_TRUE(result) << server.wait().err;
  ASSERT_EQ(result->status, 200) << result->body;
  EXPECT_EQ("Hello" + Json::parse(result->body)["choices"].as_array()[0]["text"].as_string() + "\n",
            generated);
}

TEST_F(AdapterCommands, WhatIsNoAdapterIsRefused) {
  refused("generate --prompt A --load run --adapter run", {"--adapter is run", "adapter_config"});
  refused("generate --prompt A --load adapter --adapter adapter", {"--load is adapter", "itself"});
  refused("serve --adapter nowhere", {"nowhere", "not a directory"});
  refused("eval --input text.jsonl", {"--load DIR is needed"});
}

}  // namespace
}  // namespace megatron::testing
