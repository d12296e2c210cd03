// `megatron inspect` on a run's checkpoints and log.
#include <algorithm>
#include <cstring>

#include "golden/cli/tiny_run.h"

namespace megatron::testing {
namespace {

namespace fs = std::filesystem;

class Inspect : public ::testing::Test {
 protected:
  void SetUp() override { make_tiny_run(place_); }

  std::string expect(int code, const Words& arguments, const Words& parts) {
    const Outcome r = place_.run(arguments);
    EXPECT_EQ(r.code, code) << r.out << r.err;
    for (const std::string& part : parts)
      EXPECT_NE((r.out + r.err).find(part), std::string::npos) << part << " is not in\n"
                                                               << r.out << r.err;
    return r.out;
  }
  // Inverts one byte of a file.
  void spoil(const std::string& name, size_t from_end) {
    std::string bytes = read_file(place_ / name);
    bytes[bytes.size() - 1 - from_end] ^= 1;
    write_file(place_ / name, bytes);
  }

  Workplace place_;
};

TEST_F(Inspect, Checkpoint) {
  const std::string out = expect(
      0, {"inspect", "--tensors", "run/iter_0000002"},
      {"checkpoint of step 2, 4 samples consumed, written by megatron", "precision  f32",
       "seed       1234", "layout     ranks 1", "lr 0.001", "seq-length 16",
       "model.layers.0.self_attn.q_proj.weight", "layers.0.attention.qkv.weight, rows 0-15 of 48",
       "layers.0.attention.qkv.weight, rows 32-47 of 48", "embedding.weight", "optimizer:",
       "exp_avg.model.norm.weight", "exp_avg_sq.model.norm.weight", "tokenizer.json"});
  EXPECT_EQ(out.find("all checksums"), std::string::npos);
  expect(0, {"inspect", "--verify", "run/iter_0000002"}, {"all checksums"});
}

TEST_F(Inspect, TensorsOfAllLayersInOneLine) {
  const std::string model = vectors("hf/llama");
  const auto lines = [](const std::string& text) { return std::ranges::count(text, '\n'); };
  const std::string summary =
      expect(0, {"inspect", model},
             {"model.layers.*.self_attn.q_proj.weight", "in 3 tensors", "(--tensors lists each)"});
  EXPECT_EQ(summary.find("model.layers.1."), std::string::npos);
  const std::string all =
      expect(0, {"inspect", "--tensors", model}, {"model.layers.1.self_attn.q_proj.weight"});
  EXPECT_EQ(all.find("layers.*"), std::string::npos);
  EXPECT_LT(lines(summary), lines(all));
  EXPECT_EQ(summary.substr(summary.rfind('\n', summary.size() - 2)).substr(0, 8),
            all.substr(all.rfind('\n', all.size() - 2)).substr(0, 8));  // the total
}

TEST_F(Inspect, ModelsOfTorch) {
  const std::string model = vectors("torch/gpt2_legacy"), file = model + "/pytorch_model.bin";
  expect(0, {"inspect", model},
         {"model of type gpt2, in torch.save files", "transformer.h.*.attn.masked_bias",
          "lm_head.weight", "47 tensors"});
  expect(0, {"inspect", "--tensors", file}, {"transformer.h.1.attn.bias", "47 tensors"});
  fs::create_directory(place_ / "evil");
  fs::copy(model + "/config.json", place_ / "evil/config.json");
  fs::copy(vectors("torch/small/system.bin"), place_ / "evil/pytorch_model.bin");
  expect(2, {"inspect", "evil"}, {"evil/pytorch_model.bin", "refers to 'posix.system'"});
  EXPECT_FALSE(fs::exists(place_ / "executed"));
}

TEST_F(Inspect, SaveDirectory) {
  fs::create_directory(place_ / "run/iter_0000003.tmp");
  write_file(place_ / "run/iter_0000003.tmp/model.safetensors", std::string(1000, 'x'));
  expect(0, {"inspect", "run"},
         {"3 checkpoints", "iter_0000001", "iter_0000002", "<- a run resumes from here",
          "iter_0000003.tmp", "1.0 kB  unfinished", "checkpoint of step 2", "log of a run, done",
          "Training loss", "Learning rate", "Saves"});
  expect(0, {"inspect", "--verify", "run"}, {"all checksums verified"});
  spoil("run/iter_0000001/model.safetensors", 0);
  spoil("run/iter_0000001/optimizer-00001-of-00001.safetensors", 0);
  const std::string damaged = expect(1, {"inspect", "--verify", "run"},
                                     {"damaged", "model.safetensors: tensor '",
                                      "optimizer-00001-of-00001.safetensors: tensor 'exp_avg"});
  EXPECT_NE(damaged.find("damaged"), damaged.rfind("ok"));
  expect(1, {"inspect", "--verify", "run/iter_0000001"}, {"iter_0000001: damaged"});
  expect(0, {"inspect", "run"}, {"checkpoint of step 2"});  // compares sizes only
  fs::resize_file(place_ / "run/iter_0000001/model.safetensors", 100);
  expect(0, {"inspect", "run"}, {"damaged", "100 bytes"});
}

// Names the checkpoint that --load would use: the newest complete one, none newer than the
// tracker's.
TEST_F(Inspect, TellsTheCheckpointThatARunGoesOnFrom) {
  const std::string first = "iter_0000001", second = "iter_0000002",
                    tracker = "run/latest_checkpointed_iteration.txt";
  const auto goes_on_from = [&](const std::string& out) {
    const size_t at = out.find("<- a run resumes from here");
    if (at == std::string::npos) return std::string();
    return out.substr(out.rfind("iter_", at), first.size());
  };
  EXPECT_EQ(goes_on_from(expect(0, {"inspect", "run"}, {})), second);
  spoil("run/iter_0000002/model.safetensors", 0);
  EXPECT_EQ(goes_on_from(expect(1, {"inspect", "--verify", "run"}, {})), first);
  fs::remove(place_ / "run/iter_0000002/config.json");
  EXPECT_EQ(goes_on_from(expect(0, {"inspect", "run"}, {"damaged", "checkpoint of step 1"})),
            first);
  write_file(place_ / tracker, "nonsense");
  EXPECT_EQ(goes_on_from(expect(0, {"inspect", "run"}, {"nonsense"})), first);
  EXPECT_EQ(place_.run({"inspect", "run"}).err.find("names step"), std::string::npos);
  write_file(place_ / tracker, "1");
  EXPECT_EQ(goes_on_from(expect(0, {"inspect", "run"}, {})), first);
  fs::remove(place_ / tracker);
  EXPECT_EQ(goes_on_from(expect(0, {"inspect", "run"}, {})), first);
  fs::remove(place_ / "run/iter_0000001/config.json");
  EXPECT_EQ(goes_on_from(expect(1, {"inspect", "run"}, {"cannot resume"})), "");
}

TEST_F(Inspect, Log) {
  expect(0, {"inspect", "run/log.jsonl"}, {"log of a run, done", "Iterations", "2"});
  fs::remove_all(place_ / "run/iter_0000001");
  fs::remove_all(place_ / "run/iter_0000002");
  fs::remove(place_ / "run/latest_checkpointed_iteration.txt");
  expect(0, {"inspect", "run"}, {"log of a run, done"});
  write_file(place_ / "other.jsonl", "{\"text\": \"no log\"}\n");
  expect(2, {"inspect", "other.jsonl"}, {"other.jsonl"});
}

// A damaged number of the index that stays within the .bin moves text between documents.
TEST_F(Inspect, DamagedIndices) {
  const std::string tokenizer = vectors("indexed/preprocess/tokenizer_bpe2k");
  expect(0, {"inspect", "--verify", "data"}, {"verified: index and", "token ids", "--vocab-size"});
  expect(0, {"inspect", "--verify", "data", "--tokenizer-model", tokenizer},
         {"within the vocabulary of 2048"});
  expect(1, {"inspect", "--verify", "data", "--vocab-size", "100"},
         {"data: damaged", "the vocabulary has 100 tokens"});
  const std::string idx = read_file(place_ / "data.idx");
  int64_t sequences = 0;
  std::memcpy(&sequences, &idx[18], sizeof sequences);
  const size_t length = 34 + 4 * 3, offset = 34 + 4 * static_cast<size_t>(sequences) + 8 * 5;
  const auto lengths_end = 34 + 4 * static_cast<size_t>(sequences) - 4;
  for (const size_t place : {length, offset, lengths_end}) {
    std::string changed = idx;
    changed[place] = static_cast<char>(changed[place] - 2);
    write_file(place_ / "data.idx", changed);
    expect(2, {"inspect", "data"}, {"data.idx", "damaged"});
    expect(1, {"inspect", "--verify", "data"}, {"data: damaged", "data.idx"});
    expect(2, {"merge", "--input", "data", "--output-prefix", "all"}, {"data.idx"});
    expect(2,
           {"eval", "--load", "run", "--data-path", "data", "--split", "1,0,0", "--eval-set",
            "train", "--per-document", "losses.jsonl"},
           {"data.idx"});
    expect(
        2,
        {"eval", "--load", "run", "--data-path", "data", "--split", "1,0,0", "--eval-set", "train"},
        {"data.idx"});
    expect(2, tiny_train(1), {"data.idx"});
    EXPECT_FALSE(fs::exists(place_ / "all.bin"));
    EXPECT_FALSE(fs::exists(place_ / "losses.jsonl"));
  }
}

// `train` prints the disk space that its checkpoints need before the first step.
TEST_F(Inspect, TrainTellsTheRoomOfItsCheckpoints) {
  const Outcome without = place_.run(tiny_train(1));
  EXPECT_NE(without.err.find("--save is not given"), std::string::npos) << without.err;
  const Outcome saving = place_.run(
      with(tiny_train(4), {"--save", "other", "--save-interval", "1", "--save-keep", "2"}));
  EXPECT_NE(saving.err.find("--save other: at most 3 checkpoints of "), std::string::npos)
      << saving.err;
  EXPECT_EQ(saving.err.find("--save is not given"), std::string::npos);
}

TEST_F(Inspect, WhatCannotBeVerified) {
  expect(2, {"inspect", "--verify", vectors("hf/llama")}, {"--verify", "trainer_state.json"});
  expect(2, {"inspect", "--verify", vectors("indexed/preprocess/tokenizer_bpe2k")}, {"data set"});
  expect(2, {"inspect", "nothing"}, {"nothing does not exist"});
}

}  // namespace
}  // namespace megatron::testing
