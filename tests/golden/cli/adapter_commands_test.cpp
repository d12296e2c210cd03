// Commands that read an adapter (LoRA) instead of a whole model: generate, eval, serve.
#include <gtest/gtest.h>
#include <httplib.h>

#include <filesystem>
#include <fstream>
#include <utility>

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

TEST_F(AdapterCommands, ServeHasAdaptersByName) {
  train_adapter("second", 2);
  const std::string base = text_of("--load run"), one = text_of("--adapter adapter"),
                    two = text_of("--adapter second");
  ASSERT_NE(one, two);
  Background server = place_->start(
      words("serve --load run --enable-lora --lora-modules {\"name\":\"one\",\"path\":\"adapter\"} "
            "--max-lora-rank 4 --max-loras 2 --port 0 --threads 1"));
  const int port = served_port(*place_, server);
  httplib::Client client("127.0.0.1", port);
  const auto post = [&](const std::string& path, const std::string& body) {
    const httplib::Result result = client.Post(path, body, "application/json");
    if (!result) throw Error("no answer");
    return std::pair(result->status, result->body);
  };
  const auto text = [&](const std::string& model) {
    const auto [status, body] =
        post("/v1/completions", R"({"model": ")" + model +
                                    R"(", "prompt": "Hello", "max_tokens": 12, "temperature": 0})");
    if (status != 200) return std::to_string(status) + body;
    const Json answer = Json::parse(body);
    EXPECT_EQ(answer["model"].as_string(), model);
    return "Hello" + answer["choices"].as_array()[0]["text"].as_string() + "\n";
  };
  EXPECT_EQ(text("run"), base);
  EXPECT_EQ(text("one"), one);
  EXPECT_TRUE(text("two").starts_with("404"));
  const auto load = [&](const std::string& name, const std::string& path,
                        const std::string& more = "") {
    return post("/v1/load_lora_adapter",
                R"({"lora_name": ")" + name + R"(", "lora_path": ")" + path + "\"" + more + "}");
  };
  EXPECT_EQ(load("two", "second").second, "Success: LoRA adapter 'two' added successfully.");
  EXPECT_EQ(text("two"), two);
  EXPECT_EQ(text("one"), one);
  const Json models = Json::parse(client.Get("/v1/models")->body)["data"];
  ASSERT_EQ(models.as_array().size(), 3u);
  EXPECT_EQ(models.as_array()[2]["id"].as_string(), "two");
  EXPECT_EQ(models.as_array()[2]["parent"].as_string(), "run");
  EXPECT_EQ(client.Get("/v1/models/one")->status, 200);
  EXPECT_EQ(load("run", "second").first, 400);
  EXPECT_EQ(load("one", "second").first, 400);
  EXPECT_EQ(load("three", "second").first, 400);  // --max-loras
  EXPECT_EQ(load("one", "second", R"(, "load_inplace": true)").first, 200);
  EXPECT_EQ(text("one"), two);
  // A text that has begun ends with its adapter.
  std::string streamed;
  bool unloaded = false;
  httplib::Request stream;
  stream.method = "POST";
  stream.path = "/v1/completions";
  stream.set_header("Content-Type", "application/json");
  stream.body = R"({"model": "two", "prompt": "Hello", "max_tokens": 50, "ignore_eos": true,
                    "temperature": 0, "stream": true})";
  stream.content_receiver = [&](const char* data, size_t size, size_t, size_t) {
    streamed.append(data, size);
    if (!std::exchange(unloaded, true)) {
      httplib::Client other("127.0.0.1", port);
      EXPECT_EQ(
          other.Post("/v1/unload_lora_adapter", R"({"lora_name": "two"})", "application/json")
              ->status,
          200);
    }
    return true;
  };
  EXPECT_TRUE(client.send(stream));
  EXPECT_NE(streamed.find("[DONE]"), std::string::npos) << streamed;
  EXPECT_EQ(streamed.find("error"), std::string::npos) << streamed;
  EXPECT_TRUE(text("two").starts_with("404"));
  EXPECT_EQ(post("/v1/unload_lora_adapter", R"({"lora_name": "two"})").first, 404);
}

TEST_F(AdapterCommands, AdaptersThatDoNotFitAreNotLoaded) {
  refused("serve --load run --enable-lora --lora-modules one=adapter --max-lora-rank 3",
          {"rank 4", "--max-lora-rank"});
  refused("serve --load run --lora-modules one=adapter", {"--enable-lora"});
  refused("serve --load run --enable-lora --lora-modules adapter", {"NAME=DIR"});
  refused(R"(serve --load run --enable-lora --lora-modules {"name":"one"})", {"\"path\": \"DIR\""});
  refused(R"(serve --load run --enable-lora --lora-modules {"name":"one","rank":4})",
          {"whose 'rank' is 4"});
  refused("serve --load run --enable-lora --adapter adapter", {"--lora-modules"});
  refused("serve --load run --enable-lora --tensor-model-parallel-size 2", {"2 ranks"});
  refused("serve --load run --enable-lora --lora-modules one=run", {"run", "not an adapter"});
  make_served_run(*place_, "--num-layers 1 --seq-length 64 --ffn-hidden-size 48", "narrow");
  refused("serve --load narrow --enable-lora --lora-modules one=adapter",
          {"different shape", "h.0.mlp.c_fc.lora_B.weight"});
}

TEST_F(AdapterCommands, WhatIsNoAdapterIsRefused) {
  refused("generate --prompt A --load run --adapter run", {"--adapter is run", "adapter_config"});
  refused("generate --prompt A --load adapter --adapter adapter", {"--load is adapter", "itself"});
  refused("serve --adapter nowhere", {"nowhere", "not a directory"});
  refused("eval --input text.jsonl", {"--load DIR is needed"});
}

}  // namespace
}  // namespace megatron::testing
