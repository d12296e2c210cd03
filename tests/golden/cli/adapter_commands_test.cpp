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

// A model and two adapters of it, trained until it says something else.
class AdapterCommands : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    place_ = new Workplace;
    make_served_run(*place_, "--num-layers 2 --seq-length 64", "run");
    train_adapter("adapter", 1);
    train_adapter("second", 2);
    std::ofstream(*place_ / "text.jsonl")
        << R"({"text": "Hello there, a man of letters."})" << "\n";
  }
  static void TearDownTestSuite() {
    delete place_;
    place_ = nullptr;
  }

  static void train_adapter(const std::string& name, int seed, const std::string& more = "") {
    const Outcome r = place_->run(
        words("train --model run --finetune --lora-rank 4 --lora-alpha 32 --micro-batch-size 2 "
              "--seq-length 64 --train-iters 8 --lr 0.05 --mock-data --seed " +
              std::to_string(seed) + " --save " + name + " " + more));
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

// A client of a server with adapters.
struct AdapterClient {
  explicit AdapterClient(int port) : http("127.0.0.1", port) {}

  std::pair<int, std::string> post(const std::string& path, const std::string& body) {
    const httplib::Result result = http.Post(path, body, "application/json");
    if (!result) throw Error("no answer");
    return {result->status, result->body};
  }
  // The continuation of "Hello" as `megatron generate` prints it, or the status and the error.
  std::string text(const std::string& model) {
    const auto [status, body] =
        post("/v1/completions", R"({"model": ")" + model +
                                    R"(", "prompt": "Hello", "max_tokens": 12, "temperature": 0})");
    if (status != 200) return std::to_string(status) + body;
    const Json answer = Json::parse(body);
    EXPECT_EQ(answer["model"].as_string(), model);
    return "Hello" + answer["choices"].as_array()[0]["text"].as_string() + "\n";
  }
  std::pair<int, std::string> load(const std::string& name, const std::string& path,
                                   const std::string& more = "") {
    return post("/v1/load_lora_adapter",
                R"({"lora_name": ")" + name + R"(", "lora_path": ")" + path + "\"" + more + "}");
  }
  int unload(const std::string& name) {
    return post("/v1/unload_lora_adapter", R"({"lora_name": ")" + name + "\"}").first;
  }

  httplib::Client http;
};

TEST_F(AdapterCommands, ServeHasAdaptersByName) {
  const std::string base = text_of("--load run"), one = text_of("--adapter adapter"),
                    two = text_of("--adapter second");
  ASSERT_NE(one, two);
  Background server = place_->start(
      words("serve --load run --enable-lora --lora-modules one=adapter --max-lora-rank 4 "
            "--max-loras 2 --port 0 --threads 1"));
  const int port = served_port(*place_, server);
  AdapterClient client(port);
  EXPECT_EQ(client.text("run"), base);
  EXPECT_EQ(client.text("one"), one);
  EXPECT_TRUE(client.text("two").starts_with("404"));
  EXPECT_EQ(client.load("two", "second").second, "Success: LoRA adapter 'two' added successfully.");
  EXPECT_EQ(client.text("two"), two);
  EXPECT_EQ(client.text("one"), one);
  const Json models = Json::parse(client.http.Get("/v1/models")->body)["data"];
  ASSERT_EQ(models.as_array().size(), 3u);
  EXPECT_EQ(models.as_array()[2]["id"].as_string(), "two");
  EXPECT_EQ(models.as_array()[2]["parent"].as_string(), "run");
  EXPECT_EQ(client.http.Get("/v1/models/one")->status, 200);
  EXPECT_EQ(client.load("run", "second").first, 400);
  EXPECT_EQ(client.load("one", "second").first, 400);
  EXPECT_EQ(client.load("three", "second").first, 400);  // --max-loras
  EXPECT_EQ(client.load("one", "second", R"(, "load_inplace": true)").first, 200);
  EXPECT_EQ(client.text("one"), two);
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
      EXPECT_EQ(AdapterClient(port).unload("two"), 200);
    }
    return true;
  };
  EXPECT_TRUE(client.http.send(stream));
  EXPECT_NE(streamed.find("[DONE]"), std::string::npos) << streamed;
  EXPECT_EQ(streamed.find("error"), std::string::npos) << streamed;
  EXPECT_TRUE(client.text("two").starts_with("404"));
  EXPECT_EQ(client.unload("two"), 404);
}

TEST_F(AdapterCommands, ServeHasAdaptersThatDoMoreThanAdd) {
  train_adapter("dora", 3, "--use-dora");
  train_adapter("biased", 4, "--lora-bias all");
  const std::string base = text_of("--load run"), one = text_of("--adapter adapter"),
                    dora = text_of("--adapter dora"), biased = text_of("--adapter biased");
  Background server =
      place_->start(words("serve --load run --enable-lora --lora-modules biased=biased one=adapter "
                          "--max-lora-rank 4 --max-loras 3 --port 0 --threads 1"));
  AdapterClient client(served_port(*place_, server));
  EXPECT_EQ(client.load("dora", "dora").first, 200);
  EXPECT_EQ(client.text("dora"), dora);
  EXPECT_EQ(client.text("biased"), biased);
  EXPECT_EQ(client.text("one"), one);
  EXPECT_EQ(client.text("run"), base);
  server.kill(SIGTERM);
  EXPECT_EQ(server.wait().code, 0);
  // The memory of others is enough for it only if it is named at the start.
  Background other =
      place_->start(words("serve --load run --enable-lora --max-lora-rank 4 --port 0 --threads 1"));
  AdapterClient to_other(served_port(*place_, other));
  const auto [status, error] = to_other.load("biased", "biased");
  EXPECT_EQ(status, 400);
  EXPECT_NE(error.find("are reserved for each"), std::string::npos) << error;
  EXPECT_EQ(to_other.load("one", "adapter").first, 200);
}

// Every rank has its part of each adapter.
TEST_F(AdapterCommands, ServeHasAdaptersOfADividedModel) {
  const std::string base = text_of("--load run"), one = text_of("--adapter adapter"),
                    two = text_of("--adapter second");
  for (const char* division :
       {"--pipeline-model-parallel-size 2", "--tensor-model-parallel-size 2"}) {
    SCOPED_TRACE(division);
    Background server = place_->start(
        with({"serve", "--load", "run", "--enable-lora", "--lora-modules",
              R"({"name": "one", "path": "adapter", "base_model_name": "family/base"})",
              "--max-lora-rank", "4", "--max-loras", "1", "--port", "0", "--threads", "1"},
             words(division)));
    AdapterClient client(served_port(*place_, server));
    EXPECT_EQ(Json::parse(client.http.Get("/v1/models/one")->body)["parent"].as_string(),
              "family/base");
    EXPECT_EQ(client.text("run"), base);
    EXPECT_EQ(client.text("one"), one);
    EXPECT_EQ(client.load("two", "second").first, 400);  // --max-loras
    EXPECT_EQ(client.load("one", "run", R"(, "load_inplace": true)").first, 400);
    EXPECT_EQ(client.text("one"), one);
    for (int i = 0; i < 4; ++i) {  // more than there is memory for at once
      EXPECT_EQ(
          client.load("one", i % 2 == 0 ? "second" : "adapter", R"(, "load_inplace": true)").first,
          200);
      EXPECT_EQ(client.text("one"), i % 2 == 0 ? two : one);
    }
    EXPECT_EQ(client.unload("one"), 200);
    EXPECT_EQ(client.load("two", "second").first, 200);
    EXPECT_EQ(client.text("two"), two);
    EXPECT_EQ(client.text("run"), base);
    EXPECT_EQ(client.post("/v1/embeddings", R"({"model": "two", "input": "Hello"})").first, 200);
    server.kill(SIGTERM);
    EXPECT_EQ(server.wait().code, 0);
  }
}

TEST_F(AdapterCommands, AdaptersThatDoNotFitAreNotLoaded) {
  refused("serve --load run --enable-lora --lora-modules one=adapter --max-lora-rank 3",
          {"rank 4", "--max-lora-rank"});
  refused("serve --load run --lora-modules one=adapter", {"--enable-lora"});
  refused("serve --load run --enable-lora --max-loras 1000000000",
          {"memory cannot be reserved", "--max-loras", "bytes each"});
  refused("serve --load run --enable-lora --lora-modules adapter", {"NAME=DIR"});
  refused("serve --load run --enable-lora --adapter adapter", {"--lora-modules"});
  const auto module_refused = [](const std::string& module, const Words& parts) {
    const Outcome r =
        place_->run({"serve", "--load", "run", "--enable-lora", "--lora-modules", module});
    EXPECT_EQ(r.code, 2);
    for (const std::string& part : with({"--lora-modules"}, parts))
      EXPECT_NE(r.err.find(part), std::string::npos) << part << " is not in\n" << r.err;
  };
  module_refused(R"({"name": "one"})", {"without path", "base_model_name"});
  module_refused(R"({"name": "one", "path": 1})", {"has 1 for path"});
  module_refused(R"({"name": "one", "path": "adapter", "lora": 1})", {"the key 'lora'"});
  module_refused(R"({"name")", {"--lora-modules"});
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
