// Compares `megatron eval --tasks` with EleutherAI's unmodified lm-evaluation-harness from PyPI,
// which queries `megatron serve`.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "base/json.h"
#include "golden/cli/process.h"
#include "golden/selftest/support.h"

namespace megatron::testing {
namespace {

std::string said_by(const std::string& command, int& code) {
  FILE* const pipe = popen((command + " 2>&1").c_str(), "r");
  std::string text;
  for (int c; (c = std::fgetc(pipe)) != EOF;) text += static_cast<char>(c);
  code = pclose(pipe);
  return text;
}

std::string sample(const std::string& name) {
  return std::string(MEGATRON_TEST_SOURCES) + "/golden/tasks/samples/" + name + ".jsonl";
}

// Trains on the samples for a few seconds, so that some answers are right.
void make_model(const Workplace& place) {
  std::string lines;
  for (const char* name :
       {"lambada", "gsm8k", "hellaswag", "mmlu", "piqa", "boolq", "winogrande"}) {
    std::istringstream file(read_file(sample(name)));
    for (std::string line; std::getline(file, line);) {
      const Json item = Json::parse(line);
      std::string text;
      for (const auto& [key, value] : item.as_object())
        if (value.is_string()) text += (text.empty() ? "" : "\nAnswer: ") + value.as_string();
      if (const Json* endings = item.find("endings")) {  // the right ending
        const Json& label = item["label"];
        const auto right = label.is_string() ? std::stoul(label.as_string())
                                             : static_cast<size_t>(label.as_integer());
        text = item["ctx"].as_string() + " " + endings->as_array()[right].as_string();
      }
      lines += Json(Json::Object{{"text", text}}).dump() + "\n";
    }
  }
  write_file(place / "texts.jsonl", lines);
  for (const char* command :
       {"tokenizer train --input texts.jsonl --vocab-size 500 --special-tokens <|endoftext|> "
        "--output tok",
        "preprocess --input texts.jsonl --output-prefix data --tokenizer-model tok --append-eod",
        "train --data-path data_text_document --tokenizer-model tok --split 100,0,0 --num-layers 2 "
        "--hidden-size 64 --num-attention-heads 4 --seq-length 512 --micro-batch-size 4 "
        "--train-iters 150 --lr 5e-3 --position-embedding-type rope --normalization RMSNorm "
        "--hidden-dropout 0 --attention-dropout 0 --save model"}) {
    const Outcome r = place.run(words(command));
    ASSERT_EQ(r.code, 0) << r.err;
  }
}

// Returns the address that a server logs.
std::string address_of(const Workplace& place, const Background& server) {
  while (!server.ended()) {
    const std::string file = place.path() + ".err";
    const std::string log = std::filesystem::exists(file) ? read_file(file) : "";
    const size_t at = log.find("http://");
    if (at != log.npos && log.find('\n', at) != log.npos)
      return log.substr(at, log.find_first_of(", \n", at) - at);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return "";
}

TEST(LmEval, GivesTheSameNumbers) {
  const Workplace place;
  const TemporaryDirectory python_place;
  const std::string python = python_place / "venv/bin/python";
  int code = 0;
  const std::string made = said_by("python3 -m venv " + python_place / "venv" + " && " + python +
                                       " -m pip install -q 'lm_eval[api]==0.4.13' transformers",
                                   code);
  if (code != 0)
    GTEST_SKIP() << "python3 -m venv and pip install lm_eval transformers did not succeed here "
                    "(they need python3-venv and PyPI): "
                 << made;
  ASSERT_NO_FATAL_FAILURE(make_model(place));
  std::string runs;
  for (const char* shots : {"0", "2"}) {
    const Outcome r = place.run(
        with({"eval", "--load", "model", "--json", "--num-fewshot", shots, "--output",
              std::string("ours") + shots + ".jsonl", "--tasks"},
             {sample("lambada"), sample("hellaswag"), sample("mmlu"), sample("gsm8k"),
              sample("arc_easy"), sample("piqa"), sample("winogrande"), sample("boolq"),
              "truthfulqa_mc1=" + sample("truthfulqa"), "truthfulqa_mc2=" + sample("truthfulqa")}));
    ASSERT_EQ(r.code, 0) << r.err;
    write_file(place / ("ours" + std::string(shots) + ".json"), r.out);
    const Json scores = Json::parse(r.out)["tasks"];
    EXPECT_GT(scores["lambada"]["acc"].as_number(), 0);
    EXPECT_GT(scores["hellaswag"]["acc"].as_number(), 0);
    runs += fmt::format(" {}:{}", shots, place / ("ours" + std::string(shots)));
  }
  // A separate folder: lm_eval searches it for tasks and would otherwise find those installed in
  // the venv.
  std::filesystem::create_directory(python_place / "tasks");
  Background server =
      place.start({"serve", "--load", "model", "--port", "0", "--served-model-name", "served"});
  const std::string said = said_by(
      fmt::format("{} {}/slow/cli/lm_eval_scores.py {} {} {} {} 512{}", python,
                  MEGATRON_TEST_SOURCES, address_of(place, server), place / "model/iter_0000150",
                  std::string(MEGATRON_TEST_SOURCES) + "/golden/tasks/samples",
                  python_place / "tasks", runs),
      code);
  server.kill(SIGTERM);
  server.wait();
  EXPECT_EQ(code, 0) << said;
  EXPECT_NE(said.find("all equal: 698 numbers"), std::string::npos) << said;
}

}  // namespace
}  // namespace megatron::testing
