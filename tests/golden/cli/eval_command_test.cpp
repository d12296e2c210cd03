// `megatron eval` on text and on token files.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <sstream>

#include "base/json.h"
#include "golden/cli/tiny_run.h"

namespace megatron::testing {
namespace {

namespace fs = std::filesystem;
// The model hf/llama has a vocabulary of 160; the null tokenizer reads the ids from the text.
class Eval : public ::testing::Test {
 protected:
  Eval() {
    std::string text;
    for (int document = 0; document < 9; ++document) {
      std::string ids;
      for (int i = 0; i < document * document * 3 + 1; ++i)
        ids += std::to_string((i * 37 + document) % 159) + " ";
      text += "{\"text\": \"" + ids + "\"}\n";
    }
    write_file(place_ / "text.jsonl", text);
  }

  Outcome expect(int code, const Words& arguments, const Words& parts = {}) {
    const Outcome r = place_.run(arguments);
    EXPECT_EQ(r.code, code) << r.out << r.err;
    for (const std::string& part : parts)
      EXPECT_NE((r.out + r.err).find(part), std::string::npos) << part << " is not in\n"
                                                               << r.out << r.err;
    return r;
  }

  std::vector<Json> lines(const std::string& name) {
    std::istringstream text(read_file(place_ / name));
    std::vector<Json> found;
    for (std::string line; std::getline(text, line);) found.push_back(Json::parse(line, name));
    return found;
  }

  const Words kEval = {
      "eval", "--load", vectors("hf/llama"), "--tokenizer-type", "NullTokenizer", "--threads", "1"};
  const Words kText = with(kEval, {"--input", "text.jsonl"});
  Workplace place_;
};

TEST_F(Eval, TextByAnyNumberOfRanks) {
  const Words command = with(kText, {"--per-document", "losses.jsonl", "--seq-length", "64"});
  const Outcome one = expect(0, command, {"of 9 documents", "bits per byte", "unigram entropy"});
  const std::string losses = read_file(place_ / "losses.jsonl");
  for (const char* ranks : {"2", "3"}) {
    const Outcome more = expect(0, with(command, {"--ranks", ranks, "--micro-batch-size", "3"}));
    EXPECT_EQ(more.out, one.out);
    EXPECT_EQ(read_file(place_ / "losses.jsonl"), losses);
  }
}

TEST_F(Eval, JsonAndDocumentsAgree) {
  const Outcome r = expect(0, with(kText, {"--json", "--per-document", "losses.jsonl"}));
  const Json result = Json::parse(r.out);
  double sum = 0;
  int64_t tokens = 0, bytes = 0;
  const auto documents = lines("losses.jsonl");
  ASSERT_EQ(documents.size(), 9u);
  for (size_t d = 0; d < documents.size(); ++d) {
    EXPECT_EQ(documents[d]["document"].as_integer(), static_cast<int64_t>(d));
    EXPECT_EQ(documents[d]["place"].as_string(), "text.jsonl:" + std::to_string(d + 1));
    EXPECT_EQ(documents[d]["tokens"].as_integer(), static_cast<int64_t>(d * d * 3));
    EXPECT_EQ(documents[d]["loss"].is_null(), d == 0);
    sum += documents[d]["sum"].as_number();
    tokens += documents[d]["tokens"].as_integer();
    bytes += documents[d]["bytes"].as_integer();
  }
  EXPECT_EQ(result["tokens"].as_integer(), tokens);
  EXPECT_EQ(result["loss"].as_number(), sum / static_cast<double>(tokens));
  EXPECT_EQ(result["bytes"].as_integer(), bytes);
  EXPECT_EQ(result["documents"].as_integer(), 9);
  EXPECT_NEAR(result["bits_per_byte"].as_number(), sum / std::log(2.0) / static_cast<double>(bytes),
              1e-12);
  EXPECT_NEAR(result["perplexity"].as_number(), std::exp(result["loss"].as_number()), 1e-9);
}

TEST_F(Eval, TokenFilesByDocument) {
  expect(0, {"preprocess", "--input", "text.jsonl", "--output-prefix", "data", "--tokenizer-type",
             "NullTokenizer", "--vocab-size", "160"});
  expect(0, with(kText, {"--per-document", "text.losses"}));
  expect(0,
         with(kEval, {"--test-data-path", "data_text_document", "--eval-set", "test",
                      "--per-document", "data.losses"}),
         {"test set", "of 9 documents"});
  const auto text = lines("text.losses"), data = lines("data.losses");
  ASSERT_EQ(data.size(), text.size());
  for (size_t d = 0; d < data.size(); ++d) {
    EXPECT_EQ(data[d]["sum"].as_number(), text[d]["sum"].as_number());
    EXPECT_FALSE(data[d].contains("bytes"));
  }
  // Evaluates the samples of the set one after the other.
  expect(0,
         with(kEval, {"--test-data-path", "data_text_document", "--eval-set", "test",
                      "--seq-length", "16"}),
         {"test set: 608 tokens of 38 sequences"});
}

TEST_F(Eval, NothingIsHalfWritten) {
  fs::copy(vectors("hf/llama"), place_ / "model", fs::copy_options::recursive);
  for (const auto& entry : fs::directory_iterator(place_ / "model"))
    fs::permissions(entry, fs::perms::owner_all);
  change_tensors(place_ / "model/model.safetensors", [](Values& v) {
    v["model.norm.weight"][0] = std::numeric_limits<float>::quiet_NaN();
  });
  const auto before = place_.listing();
  expect(2, with(kText, {"--load", "model", "--per-document", "losses.jsonl"}),
         {"text.jsonl:2", "nan", "NaN or infinity"});
  expect(2, with(kText, {"--load", "model", "--ranks", "2"}), {"text.jsonl:2"});
  expect(2, with(kEval, {"--input", "nothing.txt", "--per-document", "losses.jsonl"}),
         {"nothing.txt"});
  EXPECT_EQ(place_.listing(), before);
  expect(2, with(kText, {"--per-document", "text.jsonl/losses"}), {"cannot create the directory"});
  expect(2, with(kText, {"--seq-length", "129"}), {"--seq-length is 129", "128 positions"});
  expect(2, with(kText, {"--mock-data"}), {"--input text.jsonl"});
}

// Evaluation needs undamaged weights and the files next to them, but not the optimizer state.
TEST_F(Eval, DamagedCheckpointsAreRefused) {
  make_tiny_run(place_);
  const std::string folder = "run/iter_0000002/";
  const std::vector<Words> commands = {
      {"eval", "--load", "run", "--data-path", "data", "--split", "1,0,0", "--eval-set", "train"},
      {"generate", "--load", "run", "--prompt", "x", "--max-tokens", "1"}};
  fs::remove(place_ / (folder + "optimizer-00001-of-00001.safetensors"));
  for (const Words& command : commands) expect(0, command);
  for (const std::string name : {"model.safetensors", "tokenizer.json"}) {
    const std::string whole = read_file(place_ / (folder + name));
    std::string bytes = whole;
    bytes[bytes.size() - 2] ^= 1;
    write_file(place_ / (folder + name), bytes);
    for (const Words& command : commands) {
      expect(2, command, {name});
      EXPECT_EQ(place_.run(command).out, "");
    }
    write_file(place_ / (folder + name), whole);
  }
  for (const Words& command : commands) expect(0, command);
}

}  // namespace
}  // namespace megatron::testing
