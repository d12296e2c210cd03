// The fine-tuning commands teach small models functions of a text that no count of its words gives,
// measured on examples that were held out.
#include <gtest/gtest.h>
#include <httplib.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <random>
#include <set>

#include "base/json.h"
#include "golden/cli/process.h"
#include "golden/cli/served_run.h"
#include "golden/selftest/support.h"

namespace megatron::testing {
namespace {

class FineTuningTeaches : public ::testing::Test {
 protected:
  size_t below(size_t n) { return random_() % n; }

  // Six to ten words with "red" before "blue".
  Words red_before_blue() {
    static const Words kOthers = words("cat dog sun sky map key box cup hat pen");
    Words text;
    for (size_t n = 6 + below(5); text.size() < n;) text.push_back(kOthers[below(kOthers.size())]);
    const size_t second = 1 + below(text.size() - 1), first = below(second);
    text[first] = "red";
    text[second] = "blue";
    return text;
  }
  static Words exchanged(Words text) {
    for (std::string& word : text) word = word == "red" ? "blue" : word == "blue" ? "red" : word;
    return text;
  }
  static std::string joined(const Words& text) {
    std::string all;
    for (const std::string& word : text) all += (all.empty() ? "" : " ") + word;
    return all;
  }

  Words command(const std::string& name, const std::string& more) const {
    return with({name, "--tokenizer-model", vectors("post_training/sft/chatml")},
                words("--seq-length 256 --micro-batch-size 4 --global-batch-size 4 --threads 2 "
                      "--lr-decay-style cosine --eval-iters 20 " +
                      more));
  }
  static std::string small(const std::string& more) {
    return "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --vocab-size 512 "
           "--normalization RMSNorm --swiglu --disable-bias-linear --hidden-dropout 0 "
           "--attention-dropout 0 --untie-embeddings-and-output-weights "
           "--position-embedding-type rope " +
           more;
  }
  void succeed(const Words& line) const {
    const Outcome r = place_.run(line);
    ASSERT_EQ(r.code, 0) << r.out << r.err;
  }
  // Accuracy of the last validation in the log.
  double validated(const std::string& folder) const {
    double accuracy = -1;
    std::ifstream log(place_ / (folder + "/log.jsonl"));
    for (std::string line; std::getline(log, line);) {
      const Json record = Json::parse(line);
      if (record["type"].as_string() == "validation") accuracy = record["accuracy"].as_number();
    }
    return accuracy;
  }
  double evaluated(const std::string& folder, const std::string& key) const {
    const Outcome r = place_.run({"eval", "--load", folder, "--input", "held.jsonl", "--json"});
    EXPECT_EQ(r.code, 0) << r.err;
    return Json::parse(r.out)[key].as_number();
  }

  Workplace place_;
  std::mt19937 random_{7};
};

// The label is the order of two words. Each text is there in both orders, so a classifier that only
// counts words gives one of the two the wrong label, and is right for half of the texts.
TEST_F(FineTuningTeaches, AClassifierTheOrderOfWords) {
  std::map<Words, std::array<int, 2>> bags;  // held-out texts of each label by their sorted words
  {
    std::ofstream train(place_ / "train.jsonl"), held(place_ / "held.jsonl");
    for (int i = 0; i < 2000; ++i) {
      const Words text = red_before_blue();
      for (const Words& one : {text, exchanged(text)}) {
        const bool forward = one == text;
        (i < 200 ? held : train) << Json(Json::Object{{"text", joined(one)},
                                                      {"label", forward ? "forward" : "backward"}})
                                        .dump()
                                 << "\n";
        Words bag = one;
        std::ranges::sort(bag);
        if (i < 200) ++bags[bag][forward ? 1 : 0];
      }
    }
  }
  int best = 0;  // held-out texts that the best function of the bag of words labels rightly
  for (const auto& [bag, counts] : bags) best += std::max(counts[0], counts[1]);
  EXPECT_EQ(best, 200);
  succeed(command("classify", small("--train-data-path train.jsonl --valid-data-path held.jsonl "
                                    "--train-iters 400 --lr 3e-3 --lr-warmup-iters 20 "
                                    "--eval-interval 400 --save run")));
  const double accuracy = evaluated("run", "accuracy");
  EXPECT_GE(accuracy, 0.95);
  EXPECT_NEAR(validated("run"), accuracy, 0.01);
}

// The same by an encoder, which has the score at [CLS]: only positions tell the two orders apart.
TEST_F(FineTuningTeaches, AnEncoderTheOrderOfWords) {
  {
    std::ofstream train(place_ / "train.jsonl"), held(place_ / "held.jsonl"),
        vocabulary(place_ / "vocab.txt"), config(place_ / "config.json");
    for (int i = 0; i < 2000; ++i) {
      const Words text = red_before_blue();
      for (const Words& one : {text, exchanged(text)})
        (i < 200 ? held : train) << Json(Json::Object{
                                             {"text", joined(one)},
                                             {"label", one == text ? "forward" : "backward"}})
                                        .dump()
                                 << "\n";
    }
    for (const std::string& word : words("[PAD] [UNK] [CLS] [SEP] [MASK] red blue cat dog sun sky "
                                         "map key box cup hat pen"))
      vocabulary << word << "\n";
    config << R"({"model_type": "bert", "architectures": ["BertForMaskedLM"], "vocab_size": 17,
      "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
      "intermediate_size": 128, "max_position_embeddings": 64})";
  }
  succeed({"train",       "--task",
           "classify",    "--model",
           ".",           "--tokenizer-model",
           ".",           "--train-data-path",
           "train.jsonl", "--valid-data-path",
           "held.jsonl",  "--seq-length",
           "64",          "--micro-batch-size",
           "8",           "--global-batch-size",
           "8",           "--threads",
           "2",           "--lr-decay-style",
           "cosine",      "--lr",
           "2e-3",        "--lr-warmup-iters",
           "20",          "--train-iters",
           "400",         "--eval-iters",
           "40",          "--eval-interval",
           "400",         "--hidden-dropout",
           "0",           "--attention-dropout",
           "0",           "--save",
           "run"});
  const double accuracy = evaluated("run", "accuracy");
  EXPECT_GE(accuracy, 0.95);
  EXPECT_NEAR(validated("run"), accuracy, 0.01);
  const Json config = Json::read(place_ / "run/iter_0000400/config.json");
  EXPECT_EQ(config["architectures"].dump(), R"(["BertForSequenceClassification"])");
}

// An encoder-decoder writes the letters of a string in reverse. Held-out strings are generated from
// token by token, so each letter depends on those generated before it.
TEST_F(FineTuningTeaches, AnEncoderDecoderToReverseStrings) {
  constexpr size_t kHeld = 100;
  std::vector<std::string> held;
  {
    std::ofstream vocabulary(place_ / "vocab.txt"), config(place_ / "config.json"),
        train(place_ / "train.jsonl"), prompts(place_ / "prompts.jsonl");
    const Words letters = words("a b c d e f g h");
    for (const std::string& word : with(words("[PAD] [UNK] [CLS] [SEP] [MASK]"), letters))
      vocabulary << word << "\n";
    config << R"({"model_type": "t5", "vocab_size": 13, "d_model": 64, "d_kv": 16, "d_ff": 256,
      "num_layers": 2, "num_heads": 4, "feed_forward_proj": "gated-gelu",
      "tie_word_embeddings": false, "dropout_rate": 0, "decoder_start_token_id": 2,
      "eos_token_id": 3, "pad_token_id": 0})";
    std::set<Words> seen;
    while (seen.size() < 6000 + kHeld) {
      Words text(3 + below(5));
      for (std::string& letter : text) letter = letters[below(letters.size())];
      if (!seen.insert(text).second) continue;
      const std::string input = joined(text), target = joined({text.rbegin(), text.rend()});
      if (held.size() < kHeld) {
        prompts << Json(Json::Object{{"text", input}}).dump() << "\n";
        held.push_back(target);
      } else {
        train << Json(Json::Object{{"input", input}, {"target", target}}).dump() << "\n";
      }
    }
  }
  succeed(
      words("seq2seq --model-config config.json --tokenizer-model . --data-path train.jsonl "
            "--seq-length 64 --decoder-seq-length 64 --micro-batch-size 4 "
            "--global-batch-size 8 --threads 2 --lr 3e-3 --lr-decay-style cosine "
            "--lr-warmup-iters 50 --epochs 15 --save run"));
  succeed(
      words("generate --load run --prompt-file prompts.jsonl --output texts.jsonl "
            "--temperature 0 --max-tokens 12 --threads 2"));
  size_t right = 0, i = 0;
  std::ifstream lines(place_ / "texts.jsonl");
  for (std::string line; std::getline(lines, line);) {
    const Json record = Json::parse(line);
    if (record.find("text") == nullptr || record.find("prompt") == nullptr) continue;
    ASSERT_LT(i, kHeld);
    right += record["text"].as_string() == held[i++] ? 1 : 0;
  }
  EXPECT_EQ(i, kHeld);
  EXPECT_EQ(right, kHeld);
}

// An encoder without weights yet, of a vocabulary of words and the suffix "s".
class EncoderTeaches : public FineTuningTeaches {
 protected:
  void SetUp() override {
    std::ofstream vocabulary(place_ / "vocab.txt"), config(place_ / "config.json");
    for (const std::string& word : words("[PAD] [UNK] [CLS] [SEP] [MASK] red blue cat dog sun sky "
                                         "map key box cup hat pen ##s"))
      vocabulary << word << "\n";
    config << R"({"model_type": "bert", "architectures": ["BertForMaskedLM"], "vocab_size": 18,
      "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
      "intermediate_size": 128, "max_position_embeddings": 64})";
  }
  Words train(const std::string& task, const std::string& more) const {
    return words(
        "train --task " + task +
        " --model . --tokenizer-model . --train-data-path train.jsonl --valid-data-path "
        "held.jsonl --seq-length 64 --micro-batch-size 8 --global-batch-size 8 --threads 2 "
        "--lr-decay-style cosine --lr 2e-3 --lr-warmup-iters 20 --eval-iters 10 "
        "--hidden-dropout 0 --attention-dropout 0 --save run " +
        more);
  }
  const Words others_ = words("cat dog sun sky map key box cup hat pen");
};

// The two words behind "red" or "blue" are a name of this type, and no other ones are.
TEST_F(EncoderTeaches, WhichWordsAreNames) {
  {
    std::ofstream train(place_ / "train.jsonl"), held(place_ / "held.jsonl");
    for (int i = 0; i < 2200; ++i) {
      Json::Array tokens, tags;
      const auto add = [&](const std::string& word, const std::string& tag) {
        tokens.emplace_back(word + (below(2) == 0 ? "s" : ""));
        tags.emplace_back(tag);
      };
      for (const size_t n = 6 + below(6); tokens.size() < n;) {
        const bool names = below(4) == 0;
        const std::string color = below(2) == 0 ? "red" : "blue";
        add(names ? color : others_[below(others_.size())], "O");
        if (!names) continue;
        add(others_[below(others_.size())], "B-" + color);
        add(others_[below(others_.size())], "I-" + color);
      }
      (i < 200 ? held : train)
          << Json(Json::Object{{"tokens", std::move(tokens)}, {"ner_tags", std::move(tags)}}).dump()
          << "\n";
    }
  }
  succeed(train("token-classification", "--train-iters 400 --eval-interval 400"));
  EXPECT_GE(evaluated("run", "accuracy"), 0.97);
  EXPECT_GE(evaluated("run", "f1"), 0.95);
}

// The answer is from the question's first word to its second one, wherever they are.
TEST_F(EncoderTeaches, WhereAnswersAre) {
  {
    std::ofstream train(place_ / "train.jsonl"), held(place_ / "held.jsonl");
    for (int i = 0; i < 3200; ++i) {
      Words context = others_;
      std::ranges::shuffle(context, random_);
      const size_t last = 1 + below(6), first = below(last);
      const Words before(context.begin(), context.begin() + static_cast<std::ptrdiff_t>(first)),
          answer(context.begin() + static_cast<std::ptrdiff_t>(first),
                 context.begin() + static_cast<std::ptrdiff_t>(last) + 1);
      const auto begin = static_cast<int64_t>(joined(before).size() + (first > 0 ? 1 : 0));
      (i < 200 ? held : train)
          << Json(Json::Object{{"question", context[first] + " " + context[last]},
                               {"context", joined(Words(context.begin(), context.begin() + 7))},
                               {"answers", Json::Object{{"text", Json::Array{joined(answer)}},
                                                        {"answer_start", Json::Array{begin}}}}})
                 .dump()
          << "\n";
    }
  }
  succeed(train("question-answering", "--train-iters 600 --eval-interval 600"));
  EXPECT_GE(evaluated("run", "exact_match"), 0.85);
  EXPECT_GE(evaluated("run", "f1"), 0.92);
}

// Which of two answers is preferred depends on the order of two words in the prompt. Each prompt is
// there in both orders, so a score of the answer alone is right for half of the pairs.
TEST_F(FineTuningTeaches, ARewardModelWhichAnswerFitsThePrompt) {
  {
    std::ofstream train(place_ / "train.jsonl"), held(place_ / "held.jsonl");
    for (int i = 0; i < 2000; ++i) {
      const Words text = red_before_blue();
      for (const Words& one : {text, exchanged(text)}) {
        const bool forward = one == text;
        (i < 200 ? held : train) << Json(Json::Object{{"prompt", joined(one)},
                                                      {"chosen", forward ? " yes" : " no"},
                                                      {"rejected", forward ? " no" : " yes"}})
                                        .dump()
                                 << "\n";
      }
    }
  }
  const std::string data =
      small("--train-data-path train.jsonl --valid-data-path held.jsonl --eval-interval 400 ");
  succeed(command("reward", data + "--train-iters 1 --lr 1e-9 --save untrained"));
  EXPECT_NEAR(evaluated("untrained", "accuracy"), 0.5, 0.1);
  succeed(command("reward", data + "--train-iters 400 --lr 3e-3 --lr-warmup-iters 20 --save run"));
  const double accuracy = evaluated("run", "accuracy");
  EXPECT_GT(accuracy, 0.95);
  EXPECT_NEAR(validated("run"), accuracy, 0.01);
}

// Preferences between the same answers, by DPO: a model prefers the answer that fits the prompt,
// and an adapter of it learns to prefer the other one.
TEST_F(FineTuningTeaches, AModelAndItsAdapterWhichAnswerIsPreferred) {
  {
    std::ofstream train(place_ / "train.jsonl"), held(place_ / "held.jsonl"),
        other_train(place_ / "other_train.jsonl"), other_held(place_ / "other_held.jsonl");
    for (int i = 0; i < 2000; ++i) {
      const Words text = red_before_blue();
      for (const Words& one : {text, exchanged(text)}) {
        const auto pair = [&](bool yes) {
          return Json(Json::Object{{"prompt", joined(one)},
                                   {"chosen", yes ? " yes" : " no"},
                                   {"rejected", yes ? " no" : " yes"}})
                     .dump() +
                 "\n";
        };
        (i < 200 ? held : train) << pair(one == text);
        (i < 200 ? other_held : other_train) << pair(one != text);
      }
    }
  }
  succeed(command("train", small("--mock-data --train-iters 1 --lr 1e-9 --save base")));
  const std::string data =
      "--model base/iter_0000001 --train-data-path train.jsonl --valid-data-path held.jsonl ";
  succeed(command("dpo", data + "--train-iters 1 --lr 1e-6 --eval-interval 1 --save untrained"));
  EXPECT_NEAR(validated("untrained"), 0.5, 0.1);
  succeed(command("dpo", data + "--train-iters 400 --lr 3e-3 --lr-warmup-iters 20 "
                                "--eval-interval 400 --save run"));
  EXPECT_GT(validated("run"), 0.9);
  succeed(command("dpo",
                  "--model run/iter_0000400 --train-data-path other_train.jsonl --valid-data-path "
                  "other_held.jsonl --lora-rank 8 --lora-alpha 16 --train-iters 200 --lr 3e-3 "
                  "--lr-warmup-iters 20 --eval-interval 200 --save adapter"));
  EXPECT_GT(validated("adapter"), 0.9);
}

// The answer has another letter in place of each of the prompt, from the last to the first. Each
// letter is a token.
TEST_F(FineTuningTeaches, AModelToAnswer) {
  constexpr std::string_view kAsked = "bdfgjkqz", kAnswered = "kzjbqfgd";
  constexpr size_t kHeld = 64;
  Words questions, answers;
  {
    std::ofstream train(place_ / "train.jsonl"), held(place_ / "held.jsonl"),
        prompts(place_ / "prompts.jsonl");
    std::set<std::array<size_t, 4>> seen;
    while (seen.size() < 3000) {
      std::array<size_t, 4> chosen{};
      for (size_t& letter : chosen) letter = below(kAsked.size());
      if (!seen.insert(chosen).second) continue;
      std::string question, answer;
      for (const size_t letter : chosen) {
        question += kAsked[letter];
        answer.insert(answer.begin(), kAnswered[letter]);
      }
      const bool is_held = seen.size() <= kHeld;
      (is_held ? held : train)
          << Json(Json::Object{
                      {"messages",
                       Json::Array{Json::Object{{"role", "user"}, {"content", question}},
                                   Json::Object{{"role", "assistant"}, {"content", answer}}}}})
                 .dump()
          << "\n";
      if (!is_held) continue;
      questions.push_back(question);
      answers.push_back(answer);
      prompts << Json(Json::Object{{"prompt",
                                    "<|im_start|>system\nYou answer in one line.<|im_end|>\n"
                                    "<|im_start|>user\n" +
                                        questions.back() + "<|im_end|>\n<|im_start|>assistant\n"}})
                     .dump()
              << "\n";
    }
  }
  const auto exact = [&](const std::string& model) {
    const std::string output = model + ".jsonl";
    succeed({"generate", "--load", model, "--prompt-file", "prompts.jsonl", "--max-tokens", "24",
             "--temperature", "0", "--output", output});
    std::ifstream lines(place_ / output);
    size_t count = 0, number = 0;
    for (std::string line; std::getline(lines, line); ++number)
      count += Json::parse(line)["text"].as_string() == answers.at(number) ? 1 : 0;
    EXPECT_EQ(number, kHeld);
    return count;
  };
  succeed(command("train", small("--mock-data --position-embedding-type learned_absolute "
                                 "--eval-interval 100 --train-iters 1 --lr 1e-9 --save base")));
  EXPECT_EQ(exact("base"), 0u);
  succeed(command("sft",
                  "--model base/iter_0000001 --train-data-path train.jsonl --train-iters 1000 "
                  "--lr 3e-3 --lr-warmup-iters 20 --valid-data-path held.jsonl "
                  "--eval-interval 1000 --save run"));
  EXPECT_EQ(exact("run"), kHeld);

  Background server = place_.start(words("serve --load run --port 0 --threads 1"));
  const int port = served_port(place_, server);
  ASSERT_GT(port, 0) << server.wait().err;
  httplib::Client client("127.0.0.1", port);
  const Json body = Json::Object{
      {"model", "run"},
      {"temperature", 0},
      {"messages", Json::Array{Json::Object{{"role", "user"}, {"content", questions[0]}}}}};
  const httplib::Result result =
      client.Post("/v1/chat/completions", body.dump(), "application/json");
  ASSERT_TRUE(result && result->status == 200) << (result ? result->body : "no answer");
  EXPECT_EQ(Json::parse(result->body)["choices"].as_array()[0]["message"]["content"].as_string(),
            answers[0]);
  server.kill(SIGTERM);
  EXPECT_EQ(server.wait().code, 0);
}

}  // namespace
}  // namespace megatron::testing
