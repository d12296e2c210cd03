// User errors: exit code 2, a message with the value, the limit or the flag, and no half-written
// output.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "golden/cli/process.h"
#include "golden/selftest/support.h"

namespace megatron::testing {
namespace {

namespace fs = std::filesystem;
// Shared by the runs below; flags given later override these.
const Words kShape = {
    "train", "--num-layers", "1",    "--hidden-size",      "16", "--num-attention-heads",
    "2",     "--seq-length", "16",   "--micro-batch-size", "1",  "--train-iters",
    "1",     "--lr",         "1e-3", "--hidden-dropout",   "0",  "--attention-dropout",
    "0"};
const Words kMock = with(kShape, {"--mock-data", "--vocab-size", "100"});

class BadInput : public ::testing::Test {
 protected:
  // Expects the run to be refused with a message that has all of `parts`, and the folder to be
  // unchanged except for files cached for a data set.
  void refused(const Words& arguments, const Words& parts) {
    const auto before = place_.listing();
    const Outcome r = place_.run(arguments);
    std::string line;
    for (const std::string& word : arguments) line += word + " ";
    EXPECT_EQ(r.code, 2) << line << "\n" << r.out << r.err;
    for (const std::string& part : parts)
      EXPECT_NE(r.err.find(part), std::string::npos) << part << " in\n" << r.err << line;
    for (const std::string& name : place_.listing()) {
      EXPECT_TRUE(before.contains(name) || name.starts_with(kCache)) << line << " left " << name;
    }
  }

  std::string copied(const std::string& name) {
    const std::string path = place_ / fs::path(name).filename().string();
    fs::copy(vectors(name), path, fs::copy_options::recursive);
    for (const auto& entry : fs::recursive_directory_iterator(place_.path()))
      fs::permissions(entry, fs::perms::owner_all);
    return path;
  }

  // Writes the .bin and .idx of a data set of 198 documents with ids below 2048.
  std::string data_set() {
    for (const char* suffix : {".bin", ".idx"})
      fs::copy(vectors(kData + suffix), place_ / ("data" + std::string(suffix)));
    return place_ / "data";
  }

  const std::string kCache = "cache";
  const std::string kData = "indexed/preprocess/bpe2k_eod_text_document";
  const std::string kText = vectors("indexed/preprocess/corpus.jsonl"),
                    kTokenizer = vectors("indexed/preprocess/tokenizer_bpe2k");
  Workplace place_;
};

TEST_F(BadInput, Flags) {
  refused({"train", "--hiden-size", "4"}, {"--hiden-size", "--hidden-size"});
  refused({"trian"}, {"trian", "train"});
  refused({"tokenizer", "trayn"}, {"trayn", "train"});
  refused(with(kMock, {"stray"}), {"stray"});
  refused({"train", "--lr"}, {"--lr"});
  refused(with(kMock, {"--num-layers", "x"}), {"--num-layers", "x"});
  refused(with(kMock, {"--num-layers", "1.5"}), {"--num-layers", "1.5"});
  refused(with(kMock, {"--train-iters", "99999999999999999999"}),
          {"--train-iters", "99999999999999999999"});
  refused(with(kMock, {"--lr", "nan"}), {"--lr", "nan"});
  refused(with(kMock, {"--lr-decay-style", "linea"}), {"linea", "linear", "cosine"});
  refused(with(kMock, {"--tokenizer-type", "Other"}),
          {"--tokenizer-type", "Other", "NullTokenizer"});
  refused(with(kMock, {"--device", "gpu"}), {"--device", "gpu", "cpu"});
  refused(with(kMock, {"--recompute-granularity", "half"}),
          {"--recompute-granularity", "half", "full"});
}

TEST_F(BadInput, RequiredFlags) {
  refused({"train", "--mock-data"}, {"--seq-length"});
  refused({"train", "--mock-data", "--vocab-size", "9", "--seq-length", "8", "--micro-batch-size",
           "1", "--train-iters", "1"},
          {"--lr"});
  refused({"train", "--mock-data", "--vocab-size", "9", "--seq-length", "8", "--micro-batch-size",
           "1", "--train-iters", "1", "--lr", "1"},
          {"--num-layers", "--model"});
  refused(kShape, {"--vocab-size"});
  refused(with(kShape, {"--vocab-size", "100"}), {"--data-path", "--mock-data"});
  refused(with(kShape, {"--tokenizer-type", "HuggingFaceTokenizer", "--mock-data"}),
          {"--tokenizer-model"});
  refused(with(kMock, {"--finetune"}), {"--finetune", "--model"});
  refused(with(kMock, {"--data-path", "x"}), {"--mock-data", "--data-path", "x"});
  refused({"eval"}, {"--load"});
  refused({"generate", "--prompt", "x"}, {"--load"});
  refused({"generate", "--load", vectors("hf/llama")}, {"--prompt"});
  for (const std::string command : {"generate", "serve"})
    refused({command, "--load", vectors("hf/llama"), "--context-parallel-size", "2"},
            {"--context-parallel-size", "in training", "--tensor-model-parallel-size"});
  refused({"tokenizer", "train"}, {"--input"});
  refused({"tokenizer", "train", "--input", kText}, {"--output"});
  refused({"tokenizer", "encode", "x"}, {"--tokenizer-model"});
  refused({"tokenizer", "decode", "1"}, {"--tokenizer-model"});
  refused({"preprocess"}, {"--input"});
  refused({"preprocess", "--input", kText}, {"--output-prefix"});
  refused({"preprocess", "--input", kText, "--output-prefix", "p"},
          {"--tokenizer-model", "--vocab-size"});
  refused({"inspect"}, {"path"});
  refused({"verify"}, {"DIR"});
}

TEST_F(BadInput, Sizes) {
  refused(with(kMock, {"--hidden-size", "15"}),
          {"--hidden-size", "15", "--num-attention-heads", "2"});
  refused(with(kMock, {"--group-query-attention", "--num-query-groups", "3",
                       "--num-attention-heads", "4"}),
          {"4", "--num-query-groups 3"});
  refused(with(kMock, {"--global-batch-size", "3", "--micro-batch-size", "2"}),
          {"--global-batch-size 3", "--micro-batch-size 2"});
  refused(with(kMock, {"--global-batch-size", "3", "--ranks", "2"}),
          {"--global-batch-size 3", "2 data-parallel ranks"});
  refused(with(kMock, {"--max-position-embeddings", "8"}),
          {"--seq-length", "16", "8", "--max-position-embeddings"});
  refused(with(kMock, {"--position-embedding-type", "rope", "--hidden-size", "6"}),
          {"3", "--kv-channels"});
  refused(with(kMock, {"--vocab-size", "0"}), {"--vocab-size", "0"});
  refused(with(kMock, {"--train-iters", "0"}), {"--train-iters", "0"});
  refused(with(kMock, {"--ranks", "0"}), {"--ranks", "0", "1024"});
  refused(with(kMock, {"--threads", "0"}), {"--threads", "0", "1024"});
  refused(with(kMock, {"--attention-workspace-mib", "0"}),
          {"--attention-workspace-mib is 0", "[1, 65536]"});
  refused(with(kMock, {"--seed", "-1"}), {"--seed", "-1"});
  refused(with(kMock, {"--hidden-dropout", "1.5"}), {"--hidden-dropout", "1.5"});
  refused(with(kMock, {"--adam-beta1", "1"}), {"--adam-beta1", "1"});
  refused(with(kMock, {"--min-lr", "1"}), {"--min-lr", "1", "--lr 0.001"});
  refused(with(kMock, {"--lr-warmup-iters", "5"}), {"5", "--lr-warmup-iters"});
  refused(with(kMock, {"--weight-decay", "-1"}), {"-1"});
  refused(with(kMock, {"--eval-interval", "0"}), {"--eval-interval", "0"});
  refused(with(kMock, {"--num-layers", "1000000"}), {"--num-layers", "1000000", "65536"});
  refused(with(kMock, {"--num-layers", "60000", "--hidden-size", "65536"}),
          {"60000", "65536", "this process has", "use a smaller model, or more machines"});
  refused(with(kMock, {"--micro-batch-size", "2000000000"}), {"--micro-batch-size", "2000000000"});
  refused({"eval", "--load", vectors("hf/llama"), "--mock-data", "--seq-length", "1000"},
          {"--seq-length", "1000", "128"});
  refused({"eval", "--load", vectors("hf/llama"), "--mock-data", "--eval-samples", "0"},
          {"--eval-samples", "0"});
  refused({"generate", "--load", vectors("hf/llama"), "--prompt", "x", "--temperature", "-1"},
          {"--temperature", "-1"});
  refused({"bench", "step", "--train-iters", "1"}, {"--train-iters", "1", "2"});
  refused({"bench", "step", "--save", "x"}, {"--save"});
  refused({"bench", "gemm", "--seconds", "0"}, {"--seconds", "0"});
}

TEST_F(BadInput, TokenFiles) {
  const std::string data = data_set();
  const Words train = with(
      kShape, {"--data-path", data, "--split", "1,0,0", "--data-cache-path", place_ / "cache"});
  refused(with(train, {"--vocab-size", "2000"}), {data, "2000", "--vocab-size"});
  refused(with(train, {"--vocab-size", "2048", "--split", "0,1,0"}), {"--split", "train"});
  refused(with(train, {"--vocab-size", "2048", "--split", "a"}), {"--split", "a"});
  refused(with(kShape, {"--vocab-size", "2048", "--data-path", "nothing"}), {"nothing.idx"});
  refused(with(kShape, {"--vocab-size", "2048", "--data-path", "a", "b"}), {"a.idx"});
  fs::resize_file(data + ".bin", 45000);
  refused(with(train, {"--vocab-size", "2048"}), {data + ".bin"});
  for (const uintmax_t size : {uintmax_t{3000}, uintmax_t{20}, uintmax_t{0}}) {
    fs::resize_file(data + ".idx", size);
    refused(with(train, {"--vocab-size", "2048"}), {data + ".idx"});
    refused({"inspect", data}, {data + ".idx"});
  }
}

TEST_F(BadInput, ModelDirectories) {
  const std::string weights = "/model.safetensors", config = "/config.json";
  const Words mock = {"--mock-data", "--seq-length", "16", "--eval-samples", "1"};
  const auto eval = [&](const std::string& directory, const Words& parts) {
    refused(with({"eval", "--load", directory}, mock), parts);
  };
  eval("nothing", {"nothing"});
  eval(place_.path(), {place_.path(), "config.json"});
  refused(with({"generate", "--load", vectors("hf/llama")}, {"--prompt", "x"}),
          {"tokenizer.json", "--tokenizer-model"});
  refused({"eval", "--load", vectors("hf/llama"), "--data-path", vectors(kData)},
          {"tokenizer.json", "--tokenizer-model"});

  const std::string cut = copied("hf/llama");
  const auto whole = fs::file_size(cut + weights);
  for (const uintmax_t size : {whole - 1, uintmax_t{100}, uintmax_t{7}, uintmax_t{0}}) {
    fs::resize_file(cut + weights, size);
    eval(cut, {"model.safetensors"});
    refused({"inspect", cut}, {"model.safetensors"});
  }
  fs::remove(cut + weights);
  eval(cut, {"model.safetensors"});

  const std::string changed = copied("hf/llama_tied");
  change_tensors(changed + weights, [](Values& v) { v["surplus.weight"] = {1, 2}; });
  eval(changed, {"surplus.weight"});
  const std::string text = read_file(changed + config);
  const auto with_config = [&](const std::string& from, const std::string& to) {
    std::string other = text;
    const size_t at = other.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    write_file(changed + config, other.replace(at, from.size(), to));
  };
  with_config("\"num_hidden_layers\": ", "\"num_hidden_layers\": 1");
  eval(changed, {"model.layers."});  // missing tensors
  with_config("\"model_type\": \"llama\"", "\"model_type\": \"mamba\"");
  eval(changed, {"mamba", "llama", "gpt2"});
  with_config("\"rope_type\": \"default\"", "\"rope_type\": \"yarn\"");
  eval(changed, {"yarn", "factor"});
  with_config("\"num_hidden_layers\": ", "\"num_hidden_layers\": 99999999");
  eval(changed, {"config.json", "num_hidden_layers", "65536"});
  with_config("{", "");
  eval(changed, {"config.json"});
  refused(with(kShape, {"--mock-data", "--model", vectors("hf/llama")}),
          {"--model", "--num-layers"});
}

TEST_F(BadInput, Texts) {
  write_file(place_ / "empty.txt", "");
  write_file(place_ / "bad.jsonl", "{\"text\": \"a\"}\n{\"text\": \n");
  write_file(place_ / "latin.txt", "caf\xe9");
  fs::create_directory(place_ / "folder");
  const auto learn = [&](const std::string& input, const Words& parts) {
    refused({"tokenizer", "train", "--input", input, "--output", "out"}, parts);
    refused(
        {"preprocess", "--input", input, "--output-prefix", "p", "--tokenizer-model", kTokenizer},
        parts);
  };
  learn("nothing", {"nothing"});
  learn("empty.txt", {"empty.txt"});
  learn("folder", {"folder"});
  learn("bad.jsonl", {"bad.jsonl:2"});
  learn("latin.txt", {"latin.txt", "UTF-8"});
  refused({"tokenizer", "train", "--input", kText, "--output", "out", "--vocab-size", "100"},
          {"100", "257"});
  refused({"tokenizer", "train", "--input", kText, "--output", "out", "--json-key", "txt"},
          {"corpus.jsonl:1", "txt"});
  refused({"preprocess", "--input", kText, "--output-prefix", "p", "--tokenizer-model", kTokenizer,
           "--json-keys", "text", "title"},
          {"corpus.jsonl:1", "title"});
  refused({"preprocess", "--input", kText, "--output-prefix", "p", "--tokenizer-model", "nothing"},
          {"nothing"});
  refused({"preprocess", "--input", kText, "--output-prefix", "p", "--tokenizer-type",
           "NullTokenizer", "--vocab-size", "10"},
          {"corpus.jsonl:1", "10"});
  refused({"preprocess", "--input", kText, "--output-prefix", "p", "--tokenizer-model", kTokenizer,
           "--workers", "0"},
          {"--workers", "0"});
  refused({"tokenizer", "decode", "--tokenizer-model", kTokenizer, "5000"}, {"5000", "2048"});
  refused({"tokenizer", "decode", "--tokenizer-model", kTokenizer, "x"}, {"x"});
  fs::copy(kTokenizer, place_ / "tokenizer");
  fs::permissions(place_ / "tokenizer/tokenizer.json", fs::perms::owner_all);
  fs::resize_file(place_ / "tokenizer/tokenizer.json", 5000);
  refused({"tokenizer", "encode", "--tokenizer-model", "tokenizer", "x"}, {"tokenizer.json"});
}

TEST_F(BadInput, OutputsThatExist) {
  fs::create_directories(place_ / "other");
  write_file(place_ / "other/notes.txt", "mine");
  refused(with(kMock, {"--save", "other"}), {"--save", "other"});
  refused(with(kMock, {"--save", "other/notes.txt"}), {"--save", "notes.txt"});
  refused(with(kMock, {"--save", "/proc/nothing"}), {"--save", "/proc/nothing"});
  EXPECT_EQ(read_file(place_ / "other/notes.txt"), "mine");

  ASSERT_EQ(place_.run(with(kMock, {"--save", "run"})).code, 0);
  const std::string weights = read_file(place_ / "run/iter_0000001/model.safetensors");
  refused(with(kMock, {"--save", "run", "--seed", "5"}), {"--save run", "1"});
  EXPECT_TRUE(read_file(place_ / "run/iter_0000001/model.safetensors") == weights);

  const Words learn = {"tokenizer", "train",     "--input",      kText,
                       "--output",  "tokenizer", "--vocab-size", "300"};
  ASSERT_EQ(place_.run(learn).code, 0);
  refused(learn, {"tokenizer.json", "--overwrite"});
  EXPECT_EQ(place_.run(with(learn, {"--overwrite"})).code, 0);

  const Words write = {"preprocess", "--input",           kText,      "--output-prefix",
                       "p",          "--tokenizer-model", "tokenizer"};
  ASSERT_EQ(place_.run(write).code, 0);
  const std::string tokens = read_file(place_ / "p_text_document.bin");
  refused(with(write, {"--append-eod"}), {"p_text_document", "--overwrite"});
  EXPECT_TRUE(read_file(place_ / "p_text_document.bin") == tokens);
  EXPECT_EQ(place_.run(with(write, {"--append-eod", "--overwrite"})).code, 0);
  EXPECT_FALSE(read_file(place_ / "p_text_document.bin") == tokens);
}

}  // namespace
}  // namespace megatron::testing
