// `megatron dpo` trains a model on preferences, against a reference model that runs in each step or
// once before them.
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

class Dpo : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream pairs(place_ / "pairs.jsonl"), single(place_ / "single.jsonl");
    for (int i = 0; i < 40; ++i) {
      pairs << R"({"prompt": [{"role": "user", "content": "next )" << i
            << R"("}], "chosen": [{"role": "assistant", "content": ")" << i + 1
            << R"("}], "rejected": [{"role": "assistant", "content": "maybe )" << i * 7 % 40
            << R"("}], "margin": 0.5})" << "\n";
      single << R"({"prompt": "next )" << i << R"(", "completion": " )" << (i % 3 == 0 ? 99 : i + 1)
             << R"(", "label": )" << (i % 3 == 0 ? "false" : "true") << "}\n";
    }
    const Outcome base = place_.run(
        with({"train", "--tokenizer-model", vectors("post_training/sft/chatml")},
             words("--mock-data --num-layers 2 --hidden-size 32 --num-attention-heads 4 "
                   "--vocab-size 512 --position-embedding-type rope --normalization RMSNorm "
                   "--swiglu --disable-bias-linear --seq-length 128 --micro-batch-size 2 "
                   "--train-iters 2 --save-interval 1 --lr 1e-2 --save base")));
    ASSERT_EQ(base.code, 0) << base.err;
  }

  static Words command(const std::string& folder, const std::string& more = "",
                       const std::string& data = "pairs.jsonl") {
    return words("dpo --model base/iter_0000002 --data-path " + data + " --save " + folder +
                 " --seq-length 128 --micro-batch-size 2 --global-batch-size 4 --train-iters 6 "
                 "--lr 3e-3 --log-interval 1 --hidden-dropout 0 --attention-dropout 0 --split "
                 "8,2,0 --eval-interval 3 --eval-iters 1 " +
                 more);
  }
  std::vector<Json> records(const std::string& folder, const std::string& type) const {
    return log_records(place_ / folder, type);
  }
  // Losses and metrics of steps and of validations, bit for bit.
  std::vector<std::string> numbers(const std::string& folder) const {
    std::vector<std::string> all;
    for (const Json& record : records(folder, "step"))
      all.push_back(record["loss"].dump() + record["gradient_norm"].dump() +
                    record["metrics"].dump());
    for (const Json& record : records(folder, "validation"))
      all.push_back(record["loss"].dump() + record["margin"].dump() + record["accuracy"].dump());
    return all;
  }
  std::vector<double> losses(const std::string& folder, const std::string& type = "step") const {
    std::vector<double> all;
    for (const Json& record : records(folder, type)) all.push_back(record["loss"].as_number());
    return all;
  }
  Outcome passes(const Words& line) {
    Outcome r = place_.run(line);
    EXPECT_EQ(r.code, 0) << r.err;
    return r;
  }
  void refused(const Words& line, const Words& parts) {
    const Outcome r = place_.run(line);
    EXPECT_EQ(r.code, 2) << r.out << r.err;
    for (const std::string& part : parts)
      EXPECT_NE(r.err.find(part), std::string::npos) << part << " in\n" << r.err;
  }
  std::vector<std::string> stored() const {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(place_ / "cache"))
      files.push_back(entry.path().string());
    return files;
  }
  static bool says(const Outcome& r, const std::string& part) {
    return (r.out + r.err).find(part) != std::string::npos;
  }

  static constexpr const char* kStored = "--precompute-reference --data-cache-path cache ";
  Workplace place_;
};

TEST_F(Dpo, ALossFallsFromLogTwo) {
  const Outcome r = passes(command("out"));
  for (const char* part : {"40 pairs of completions", "40 pairs have a margin",
                           "reference model: 'base/iter_0000002'"})
    EXPECT_TRUE(says(r, part)) << part << " in\n" << r.err;
  const std::vector<double> found = losses("out"), held_out = losses("out", "validation");
  ASSERT_EQ(found.size(), 6u);
  EXPECT_EQ(found[0], std::log(2.0));
  for (size_t i = 1; i < found.size(); ++i) EXPECT_LT(found[i], found[i - 1]) << i;
  ASSERT_EQ(held_out.size(), 2u);
  EXPECT_LT(held_out[1], held_out[0]);
  EXPECT_LT(held_out[0], std::log(2.0));
  const Json last = records("out", "validation")[1];
  EXPECT_GT(last["margin"].as_number(), 0);
  EXPECT_FALSE(last.contains("perplexity"));
}

// The same bits, whether the reference model runs in each step or before the run.
TEST_F(Dpo, StoredReferencesGiveTheSameBits) {
  std::vector<double> of_one;
  int runs = 0;
  for (const std::string layout :
       {"", "--tensor-model-parallel-size 2 --sequence-parallel ", "--context-parallel-size 2 ",
        "--pipeline-model-parallel-size 2 --ranks 4 --use-distributed-optimizer ",
        "--ranks 2 --data-parallel-sharding-strategy optim_grads_params "}) {
    SCOPED_TRACE(layout);
    const std::string name = std::to_string(runs++),
                      before = layout + "--precompute-reference --data-cache-path cache" + name;
    passes(command("live" + name, layout));
    const Outcome stored = passes(command("stored" + name, before));
    EXPECT_TRUE(says(stored, "are written to cache" + name + "/reference_")) << stored.err;
    const std::vector<std::string> expected = numbers("live" + name);
    EXPECT_EQ(expected.size(), 8u);
    EXPECT_EQ(numbers("stored" + name), expected);
    const std::vector<double> found = losses("live" + name);
    if (of_one.empty()) of_one = found;
    ASSERT_EQ(found.size(), of_one.size());
    for (size_t i = 0; i < found.size(); ++i)
      EXPECT_NEAR(found[i], of_one[i], 2e-5 * of_one[i]) << "step " << i + 1;
  }
  const Outcome again = passes(command("again", "--precompute-reference --data-cache-path cache0"));
  EXPECT_TRUE(says(again, "are read from cache0/reference_")) << again.err;
  EXPECT_FALSE(says(again, "are written to")) << again.err;
  EXPECT_EQ(numbers("again"), numbers("live0"));
}

// The same bits, whether the reference is the model with its adapter switched off, a second model
// or stored.
TEST_F(Dpo, AnAdaptersReferenceIsTheModelThatItAdapts) {
  const std::string lora = "--lora-rank 4 --lora-alpha 8 ";
  const Outcome r = passes(command("adapter", lora));
  EXPECT_TRUE(says(r, "reference model: the model without its adapter")) << r.err;
  const std::vector<double> found = losses("adapter");
  EXPECT_EQ(found[0], std::log(2.0));
  for (size_t i = 1; i < found.size(); ++i) EXPECT_LT(found[i], found[i - 1]) << i;
  passes(command("second", lora + "--reference-model base/iter_0000002"));
  passes(command("stored", lora + kStored));
  for (const std::string other : {"second", "stored"})
    EXPECT_EQ(numbers(other), numbers("adapter")) << other;
  passes(command("divided", lora + "--tensor-model-parallel-size 2 --sequence-parallel"));
  const std::vector<double> divided = losses("divided");
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(divided[i], found[i], 2e-5 * found[i]);
  // A module that is trained whole is another one than the reference's.
  const Outcome saved = passes(command("saved", lora + "--lora-modules-to-save embed_tokens"));
  EXPECT_TRUE(says(saved, "reference model: '")) << saved.err;
  EXPECT_EQ(losses("saved")[0], std::log(2.0));
}

// The adapters of experts are switched off as well.
TEST_F(Dpo, AnAdapterOfExpertsIsSwitchedOff) {
  passes(with({"train", "--tokenizer-model", vectors("post_training/sft/chatml")},
              words("--mock-data --num-layers 1 --hidden-size 32 --num-attention-heads 4 "
                    "--vocab-size 512 --position-embedding-type rope --normalization RMSNorm "
                    "--swiglu --disable-bias-linear --num-experts 4 --moe-router-topk 2 "
                    "--seq-length 128 --micro-batch-size 2 --train-iters 1 --save-interval 1 "
                    "--lr 1e-2 --save base_of_experts")));
  const std::string model = "--model base_of_experts/iter_0000001 --lora-rank 4 --lora-alpha 8 ";
  passes(command("live", model));
  passes(command("second", model + "--reference-model base_of_experts/iter_0000001"));
  passes(command("stored", model + kStored));
  for (const std::string other : {"second", "stored"})
    EXPECT_EQ(numbers(other), numbers("live")) << other;
}

TEST_F(Dpo, AFileThatIsDamagedIsMadeAgain) {
  passes(command("one", kStored));
  for (const std::string& path : stored()) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-3, std::ios::end);
    file.put('\x55');
  }
  const size_t files = stored().size();
  EXPECT_EQ(files, 2u);  // training and validation
  const Outcome again = passes(command("two", kStored));
  EXPECT_TRUE(says(again, "is damaged")) << again.err;
  EXPECT_EQ(numbers("two"), numbers("one"));
  // Other rows, another reference model: other files.
  passes(command("three", std::string(kStored) + "--chat-truncation keep_end --seq-length 40"));
  EXPECT_EQ(stored().size(), files + 2);
  passes(command("four", std::string(kStored) + "--reference-model base/iter_0000001"));
  EXPECT_EQ(stored().size(), files + 4);
}

// The reference stays what it was at the beginning, in both ways to compute it.
TEST_F(Dpo, ResumesWithTheSameBits) {
  passes(command("whole"));
  for (const std::string more : {"", kStored}) {
    const std::string folder = more.empty() ? "live" : "stored";
    passes(command(folder, more + "--exit-interval 2"));
    if (!more.empty())
      for (const std::string& path : stored()) std::filesystem::remove(path);
    const Outcome rest = passes(command(folder, more));
    EXPECT_TRUE(says(rest, "resuming from")) << rest.err;
    EXPECT_EQ(numbers(folder), numbers("whole"));
    EXPECT_EQ(read_file(place_ / (folder + "/iter_0000006/model.safetensors")),
              read_file(place_ / "whole/iter_0000006/model.safetensors"));
  }
  const std::string longer = "--extend-to-iters 8 --override-opt-param-scheduler ";
  refused(command("whole", longer + "--reference-model base/iter_0000001"),
          {"began with another one", "--reference-model"});
  Words without = command("whole", longer + "--load whole");
  without.erase(without.begin() + 1, without.begin() + 3);
  refused(without, {"no flag names its weights", "--reference-model"});
  passes(with(without, {"--reference-model", "base/iter_0000002"}));
}

TEST_F(Dpo, AnotherModelMayBeTheReference) {
  passes(command("own", "--reference-model base/iter_0000002"));
  passes(command("other", "--reference-model base/iter_0000001"));
  EXPECT_EQ(losses("own")[0], std::log(2.0));
  EXPECT_GT(std::abs(losses("other")[0] - std::log(2.0)), 1e-6);
  ASSERT_EQ(place_
                .run(with({"train", "--tokenizer-model", vectors("post_training/sft/chatml")},
                          words("--mock-data --num-layers 1 --hidden-size 16 "
                                "--num-attention-heads 2 --vocab-size 512 --seq-length 64 "
                                "--micro-batch-size 2 --train-iters 1 --lr 1e-2 --save small")))
                .code,
            0);
  refused(command("out", "--reference-model small/iter_0000001"),
          {"--reference-model small/iter_0000001", "another shape"});
  refused(command("out", "--reference-model nowhere"), {"nowhere"});
}

TEST_F(Dpo, LossesReadWhatTheyNeed) {
  const Outcome kto = passes(command("kto", "--preference-loss kto --lr 1e-2", "single.jsonl"));
  EXPECT_TRUE(says(kto, "26 desirable and 14 undesirable completions")) << kto.err;
  EXPECT_LT(losses("kto").back(), losses("kto").front());
  const Outcome pairs = passes(command("both", "--preference-loss apo_zero_unpaired"));
  EXPECT_TRUE(says(pairs, "40 desirable and 40 undesirable completions")) << pairs.err;
  for (const std::string loss : {"orpo", "simpo"}) {
    const Outcome r = passes(command(loss, "--preference-loss " + loss));
    EXPECT_FALSE(says(r, "reference model:")) << r.err;
    EXPECT_LT(losses(loss).back(), losses(loss).front());
  }
  const Outcome idle = passes(command("idle", "--preference-loss simpo --precompute-reference"));
  EXPECT_TRUE(says(idle, "precompute-reference")) << idle.err;
}

// A step over all pairs, which hardly changes the weights, has the losses that validation of the
// same pairs gives each source; their mean by pairs is the step's.
TEST_F(Dpo, LogsTheLossOfEachSource) {
  std::ofstream file(place_ / "mixed.jsonl");
  for (int i = 0; i < 12; ++i)
    file << R"({"source": ")" << (i % 3 == 0 ? "math" : "code") << R"(", "prompt": "next )" << i
         << R"(", "chosen": ")" << i * i << R"(", "rejected": "maybe )"
         << std::string(static_cast<size_t>(1 + i), 'a') << "\"}\n";
  file.close();
  const auto step_of = [&](const std::string& folder, const std::string& layout) {
    passes(
        words("dpo --model base/iter_0000002 --train-data-path mixed.jsonl --valid-data-path "
              "mixed.jsonl --seq-length 128 --micro-batch-size 2 --global-batch-size 12 "
              "--train-iters 1 --lr 1e-12 --chat-packing none --eval-interval 1 "
              "--full-validation --multiple-validation-sets --hidden-dropout 0 "
              "--attention-dropout 0 --preference-loss cpo --cpo-alpha 0 --save " +
              folder + " " + layout));
    return records(folder, "step").at(0);
  };
  const Json one = step_of("one", "");
  std::map<std::string, double> sets;
  for (const Json& found : records("one", "validation"))
    sets[found["set"].as_string()] = found["loss"].as_number();
  ASSERT_EQ(sets.size(), 2u);
  EXPECT_GT(std::abs(sets["math"] - sets["code"]), 1e-3);
  for (const Json& step :
       {one, step_of("context", "--context-parallel-size 2"), step_of("ranks", "--ranks 2"),
        step_of("stages", "--pipeline-model-parallel-size 2")}) {
    EXPECT_NEAR(step["metrics"]["loss/math"].as_number(), sets["math"], 1e-5);
    EXPECT_NEAR(step["metrics"]["loss/code"].as_number(), sets["code"], 1e-5);
    EXPECT_NEAR(step["loss"].as_number(), (4 * sets["math"] + 8 * sets["code"]) / 12, 1e-5);
  }
}

TEST_F(Dpo, ShowWhatIsCompared) {
  const Outcome r = passes(words("dpo --show 2 --data-path pairs.jsonl --model base/iter_0000002"));
  for (const char* part : {"pairs.jsonl:1, chosen", "pairs.jsonl:2, rejected", "[[1", "[[maybe 0"})
    EXPECT_TRUE(says(r, part)) << part << " in\n" << r.out;
}

TEST_F(Dpo, BadInputIsRefusedBeforeAStep) {
  std::ofstream(place_ / "bad.jsonl") << R"({"prompt": "p", "chosen": "a", "rejected": "b"})"
                                      << "\n"
                                      << R"({"prompt": "p", "chosen": "a", "rejected": "a"})";
  refused(command("out", "", "bad.jsonl"), {"bad.jsonl:2", "the same tokens"});
  refused(command("out", "", "single.jsonl"), {"single.jsonl:1", "--preference-loss kto"});
  refused(command("out", "--chat-packing wrapped"), {"--chat-packing wrapped", "bfd or none"});
  refused(command("out", "--no-calculate-per-token-loss"), {"--no-calculate-per-token-loss"});
  refused(command("out", "--task sft"), {"--task sft"});
  refused({"dpo"}, {"--data-path FILE", "rejected"});
  EXPECT_FALSE(std::filesystem::exists(place_ / "out/log.jsonl"));
}

}  // namespace
}  // namespace megatron::testing
