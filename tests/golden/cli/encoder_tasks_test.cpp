// `megatron token-classification` and `megatron question-answering` train heads of tokens.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/files.h"
#include "base/json.h"
#include "checkpoint/safetensors.h"
#include "golden/cli/command_test.h"
#include "golden/selftest/support.h"
#include "models/model.h"
#include "text.h"
#include "word_vocabulary.h"

namespace megatron::testing {
namespace {

class EncoderTasks : public CommandTest {
 protected:
  void SetUp() override {
    write_word_vocabulary(place_ / "words", 160);
    std::ofstream words(place_ / "words.jsonl"), questions(place_ / "questions.jsonl");
    for (int i = 0; i < 40; ++i) {
      const std::string entity = i % 2 == 0 ? "w20" : "w30";
      words << R"({"tokens": ["w)" << 40 + i << R"(", ")" << entity
            << R"(", "w50", "w51"], "ner_tags": )"
            << (i % 2 == 0 ? R"(["O", "B-EVEN", "I-EVEN", "O"])" : R"(["O", "B-ODD", "O", "O"])")
            << "}\n";
      questions << R"({"question": ")" << entity << R"(", "context": "w)" << 40 + i
                << R"( w20 w30 w60", "answers": {"text": [")" << entity
                << R"("], "answer_start": [)" << (i % 2 == 0 ? 4 : 8) << "]}}\n";
    }
  }

  Words command(const std::string& name, const std::string& more) const {
    return with(with({name, "--model", vectors("hf/bert")}, tokenizer_),
                words("--seq-length 32 --micro-batch-size 2 --global-batch-size 4 --lr 3e-3 "
                      "--train-iters 30 --log-interval 1 --hidden-dropout 0 --attention-dropout 0 "
                      "--threads 1 " +
                      more));
  }
  Json evaluated(const std::string& folder, const std::string& file) const {
    return Json::parse(
        succeed(with({"eval", "--load", folder, "--input", file, "--json"}, tokenizer_)).out);
  }
  void same_in_layouts(const std::string& name, const std::string& data) const {
    const std::vector<double> expected = losses("run");
    for (const char* layout :
         {"--context-parallel-size 2",
          "--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 1 --ranks 4",
          "--tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer"}) {
      const std::string folder = "out" + std::to_string(std::hash<std::string>()(layout));
      succeed(command(name, data + "--train-iters 6 --save " + folder + " " + layout));
      const std::vector<double> found = losses(folder);
      ASSERT_EQ(found.size(), 6u);
      for (size_t i = 0; i < found.size(); ++i)
        EXPECT_NEAR(found[i], expected[i], 5e-5 * expected[i]) << layout << ", step " << i + 1;
    }
  }

  const Words tokenizer_ = {"--tokenizer-model", "words"};
};

TEST_F(EncoderTasks, WordsGetLabels) {
  const std::string data =
      "--data-path words.jsonl --split 9,1,0 --eval-interval 30 --eval-iters 1 "
      "--lr-decay-style constant ";
  const Outcome r = succeed(command("token-classification", data + "--save run"));
  EXPECT_NE(r.err.find("40 texts of 160 words with labels"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("its output layer is replaced by classifier.weight"), std::string::npos)
      << r.err;
  const Json config = Json::read(place_ / "run/iter_0000030/config.json");
  EXPECT_EQ(config["architectures"].dump(), R"(["BertForTokenClassification"])");
  EXPECT_EQ(config["id2label"].dump(), R"({"0": "B-EVEN", "1": "B-ODD", "2": "I-EVEN", "3": "O"})");
  const Json validation = log_records(place_ / "run", "validation").back();
  EXPECT_GT(validation["f1"].as_number(), 0.9) << validation.dump();
  const Json found = evaluated("run", "words.jsonl");
  EXPECT_EQ(found["words"].as_integer(), 160);
  EXPECT_GT(found["accuracy"].as_number(), 0.95);
  EXPECT_EQ(found["entities"].as_integer(), 40);
  EXPECT_GT(found["f1"].as_number(), 0.9);
  EXPECT_EQ(found["types"].as_array()[1]["type"].as_string(), "ODD");
  same_in_layouts("token-classification", data);
  // It goes on with its own classes.
  succeed(with(with({"token-classification", "--model", "run/iter_0000030"}, tokenizer_),
               words("--data-path words.jsonl --seq-length 32 --micro-batch-size 2 --train-iters 2 "
                     "--lr 1e-4")));
  refused(with(with({"token-classification", "--model", "run/iter_0000030"}, tokenizer_),
               words("--data-path words.jsonl --seq-length 32 --micro-batch-size 2 --train-iters 2 "
                     "--lr 1e-4 --labels O B-X")),
          {"--labels is O B-X", "B-EVEN"});
}

TEST_F(EncoderTasks, QuestionsGetAnswers) {
  const std::string data = "--data-path questions.jsonl --doc-stride 2 --lr-decay-style constant ";
  const Outcome r = succeed(command("question-answering", data + "--save run --train-iters 60"));
  EXPECT_NE(r.err.find("40 questions, 40 windows"), std::string::npos) << r.err;
  EXPECT_EQ(Json::read(place_ / "run/iter_0000060/config.json")["architectures"].dump(),
            R"(["BertForQuestionAnswering"])");
  const std::vector<double> all = losses("run");
  EXPECT_LT(all.back(), 0.5 * all.front());
  EXPECT_TRUE(log_records(place_ / "run", "step").back()["metrics"].contains("exact match"));
  const Json found = evaluated("run", "questions.jsonl");
  EXPECT_EQ(found["questions"].as_integer(), 40);
  EXPECT_GT(found["exact_match"].as_number(), 0.8);
  EXPECT_GE(found["f1"].as_number(), found["exact_match"].as_number());
  same_in_layouts("question-answering", data);
}

// As PEFT has it, an adapter's directory has the whole head; PEFT 0.21 opens these with our logits.
TEST_F(EncoderTasks, AdaptersBringTheirHeads) {
  std::ofstream(place_ / "texts.jsonl") << R"([{"text": "w20 w21", "label": "a"},)"
                                        << R"( {"text": "w30 w31", "label": "b"}])";
  struct Kind {
    std::string name, data, type, saved, head;
  };
  for (const Kind& kind : std::initializer_list<Kind>{
           {"token-classification", "words.jsonl", "TOKEN_CLS", R"(["classifier"])", "classifier"},
           {"question-answering", "questions.jsonl --doc-stride 2", "QUESTION_ANS",
            R"(["qa_outputs"])", "qa_outputs"},
           {"classify", "texts.jsonl", "SEQ_CLS", R"(["classifier", "bert.pooler"])",
            "classifier"}}) {
    SCOPED_TRACE(kind.name);
    const std::string flags =
        "--lora-rank 4 --train-iters 6 --lr-decay-style constant --data-path " + kind.data +
        " --save " + kind.name;
    succeed(command(kind.name, flags));
    const std::string folder = place_ / (kind.name + "/iter_0000006");
    const Json adapter = Json::read(folder + "/adapter_config.json");
    EXPECT_EQ(adapter["task_type"].as_string(), kind.type);
    EXPECT_EQ(adapter["modules_to_save"].dump(), kind.saved);
    const checkpoint::SafetensorsFile file(folder + "/adapter_model.safetensors");
    for (const char* part : {".weight", ".bias"})
      EXPECT_NE(file.find("base_model.model." + kind.head + part), nullptr) << part;
    EXPECT_EQ(file.find("base_model.model.bert.pooler.dense.weight") != nullptr,
              kind.name == "classify");
    EXPECT_LT(losses(kind.name).back(), losses(kind.name).front());
    // It resumes with the same bits, and opens by itself.
    succeed(command(kind.name, flags + "_parts --exit-interval 2"));
    succeed(command(kind.name, flags + "_parts --load " + kind.name + "_parts"));
    EXPECT_EQ(read_file(place_ / (kind.name + "_parts/iter_0000006/adapter_model.safetensors")),
              read_file(folder + "/adapter_model.safetensors"));
    evaluated(kind.name, kind.data.substr(0, kind.data.find(' ')));
    // PEFT writes no config.json: the head is known by its name and the task.
    const std::string peft = place_ / (kind.name + "_peft");
    std::filesystem::create_directory(peft);
    for (const char* name : {"/adapter_config.json", "/adapter_model.safetensors"})
      std::filesystem::copy(folder + name, peft + name);
    const models::Model named = models::model_from_directory(folder),
                        unnamed = models::model_from_directory(peft);
    EXPECT_EQ(unnamed->facts().scored, named->facts().scored);
    EXPECT_EQ(unnamed->score_labels(), named->score_labels());
    succeed({"merge-adapter", "--adapter", kind.name + "/iter_0000006", "--save",
             kind.name + "_merged"});
    const models::Model merged = models::model_from_directory(place_ / (kind.name + "_merged"));
    EXPECT_EQ(merged->describe(), named->base()->describe());
    EXPECT_EQ(merged->facts().label_names, named->facts().label_names);
  }
}

// The label is whether the second text is the first one's successor; types tell the texts apart.
TEST_F(EncoderTasks, TwoTextsHaveALabel) {
  std::ofstream data(place_ / "pairs.jsonl");
  for (int i = 0; i < 40; ++i)
    data << fmt::format(R"({{"text": "w{}", "text_pair": "w{}", "label": "{}"}})", 20 + i,
                        20 + i + 1 + i % 2, i % 2 == 0 ? "next" : "other")
         << "\n";
  data.close();
  expect_contains(succeed(command("classify", "--data-path pairs.jsonl --show 1")).out,
                  {"pairs.jsonl:1, label \"next\": 5 tokens", "[[[CLS]]]w20 [SEP] w21 [SEP]"});
  succeed(command("classify", "--data-path pairs.jsonl --save pairs --train-iters 40"));
  EXPECT_LT(losses("pairs").back(), losses("pairs").front());
  const Json found = evaluated("pairs", "pairs.jsonl");
  EXPECT_EQ(found["texts"].as_integer(), 40);
}

TEST_F(EncoderTasks, ShowWhatIsLearned) {
  expect_contains(succeed(command("token-classification", "--data-path words.jsonl --show 1")).out,
                  {"words.jsonl:1, labels O B-EVEN I-EVEN O", "[CLS][[w40 w20 w50 w51]][SEP]"});
  for (const std::string end : {"start", "end"})
    expect_contains(
        succeed(command("token-classification",
                        "--data-path words.jsonl --show 1 --seq-length 4 --chat-truncation keep_" +
                            end))
            .out,
        {"cut to 4 tokens (--seq-length), which leaves out 2 of its words",
         end == "start" ? "[CLS][[w40 w20]][SEP]" : "[CLS][[w50 w51]][SEP]"});
  expect_contains(
      succeed(command("question-answering", "--data-path questions.jsonl --show 1")).out,
      {"questions.jsonl:1, window 1 of 1", "w40[[w20]]w30"});
}

TEST_F(EncoderTasks, BadInputIsRefusedBeforeAStep) {
  std::ofstream(place_ / "bad.jsonl")
      << R"({"question": "w1", "context": "w2", "answers": {"text": ["w3"], "answer_start": [0]}})"
      << "\n";
  refused(command("question-answering", "--data-path bad.jsonl"), {"bad.jsonl:1", "'w3'"});
  refused(command("question-answering", "--data-path questions.jsonl --seq-length 6"),
          {"questions.jsonl:1", "--seq-length 6", "--doc-stride"});
  refused(command("question-answering", "--data-path questions.jsonl --chat-truncation keep_end"),
          {"--chat-truncation keep_end", "windows"});
  succeed(
      command("question-answering", "--data-path questions.jsonl --train-iters 1 --save short"));
  refused(with({"eval", "--load", "short", "--input", "questions.jsonl",
                "--inference-max-seq-length", "4"},
               tokenizer_),
          {"questions.jsonl:1", "raise --inference-max-seq-length"});
  refused(command("token-classification", "--data-path words.jsonl --labels O B-EVEN"),
          {"words.jsonl", "'I-EVEN' is none of"});
  refused(command("token-classification", "--data-path words.jsonl --doc-stride 3"),
          {"--doc-stride 3", "question-answering"});
  refused(command("token-classification", "--data-path words.jsonl --chat-packing wrapped"),
          {"--chat-packing wrapped", "use bfd or none"});
  refused(
      with({"token-classification", "--model", vectors("hf/gpt2"), "--tokenizer-model", "words"},
           words("--data-path words.jsonl --seq-length 16 --micro-batch-size 1 --train-iters 1 "
                 "--lr 1e-3")),
      {"trains encoders", "gpt2"});
  refused({"question-answering"}, {"--data-path FILE", "question"});
  refused({"token-classification"}, {"--data-path FILE", "ner_tags"});
}

}  // namespace
}  // namespace megatron::testing
