// Existing outputs, values in any form, and the warnings that the commands print.
#include <gtest/gtest.h>

#include "base/json.h"
#include "golden/cli/process.h"
#include "golden/selftest/support.h"

namespace megatron::testing {
namespace {

namespace fs = std::filesystem;
class Commands : public ::testing::Test {
 protected:
  Outcome expect(int code, const Words& arguments, const Words& parts) {
    const Outcome r = place_.run(arguments);
    std::string line;
    for (const std::string& word : arguments) line += word + " ";
    EXPECT_EQ(r.code, code) << line << "\n" << r.out << r.err;
    for (const std::string& part : parts)
      EXPECT_NE(r.err.find(part), std::string::npos) << part << " is not in\n" << r.err << line;
    return r;
  }

  const std::string kText = vectors("indexed/preprocess/corpus.jsonl"),
                    kTokenizer = vectors("indexed/preprocess/tokenizer_bpe2k");
  Workplace place_;
};

TEST_F(Commands, BracketsComeThrough) {
  const auto encoded = [&](const Words& text) {
    return expect(0, with({"tokenizer", "encode", "--tokenizer-model", kTokenizer}, text), {}).out;
  };
  const std::string ids = encoded({"[hello, world]"});
  EXPECT_EQ(expect(0,
                   {"tokenizer", "decode", "--tokenizer-model", kTokenizer,
                    ids.substr(0, ids.size() - 1)},
                   {})
                .out,
            "[hello, world]\n");
  expect(0,
         {"tokenizer", "train", "--input", kText, "--output", "t", "--vocab-size", "300",
          "--special-tokens", "[PAD]", "[a, b]"},
         {});
  const Json tokens = Json::read(place_ / "t/tokenizer.json");
  EXPECT_EQ(tokens["added_tokens"].as_array()[0]["content"].as_string(), "[PAD]");
  EXPECT_EQ(tokens["added_tokens"].as_array()[1]["content"].as_string(), "[a, b]");
}

TEST_F(Commands, FlagsReachTheirChecks) {
  const Words train = {"train",
                       "--num-layers",
                       "1",
                       "--hidden-size",
                       "16",
                       "--num-attention-heads",
                       "2",
                       "--seq-length",
                       "16",
                       "--micro-batch-size",
                       "1",
                       "--train-iters",
                       "1",
                       "--mock-data",
                       "--vocab-size",
                       "100"};
  expect(2, with(train, {"--lr", "-1"}), {"lr", "-1"});
  expect(2, with(train, {"--lr", "1", "--bf16=no"}), {"--bf16", "no"});
  expect(2, with(train, {"--lr", "1", "--threads", "1024", "--ranks", "2"}),
         {"--threads 1024", "2 ranks", "2048", "1024"});
  expect(2, {"trian"}, {"no command 'trian'; did you mean 'train'? See megatron --help"});
  const std::string help = place_.run({"train", "--help"}).out;
  EXPECT_NE(help.find("\nUsage: megatron train [flags]\n"), std::string::npos) << help;
}

TEST_F(Commands, TokenizersThatExistStay) {
  fs::create_directory(place_ / "t");
  const std::string mine = "{\"tokenizer_class\": \"Mine\"}";
  write_file(place_ / "t/tokenizer_config.json", mine);
  const Words train = {"tokenizer", "train", "--input", kText, "--vocab-size", "260", "--output"};
  expect(2, with(train, {"t"}), {"tokenizer_config.json", "--overwrite"});
  EXPECT_EQ(read_file(place_ / "t/tokenizer_config.json"), mine);
  EXPECT_EQ(place_.listing(), (std::set<std::string>{"t", "t/tokenizer_config.json"}));
  expect(2, with(train, {"t/tokenizer_config.json"}), {"--output", "not a directory"});
  expect(0, with(train, {"t", "--overwrite"}), {});
  write_file(place_ / "t/tokenizer.json", "notes");
  expect(2, with(train, {"t", "--overwrite"}), {"t/tokenizer.json", "not a tokenizer file"});
  EXPECT_EQ(read_file(place_ / "t/tokenizer.json"), "notes");
}

TEST_F(Commands, TokenFilesThatExistStay) {
  const Words write = {"preprocess", "--input",           kText,     "--output-prefix",
                       "p",          "--tokenizer-model", kTokenizer};
  for (const std::string suffix : {".bin", ".idx"}) {
    const std::string name = "p_text_document" + suffix;
    write_file(place_ / name, "mine");
    expect(2, write, {name, "is not overwritten"});
    expect(2, with(write, {"--overwrite"}), {name, "is not overwritten", "(--overwrite)"});
    EXPECT_EQ(read_file(place_ / name), "mine");
    EXPECT_EQ(place_.listing(), std::set<std::string>{name});
    fs::remove(place_ / name);
  }
  // The state after a kill between the renames of the two files.
  write_file(place_ / "p_text_document.bin", "ids");
  write_file(place_ / "p_text_document.idx.4194304.0.tmp", "");
  expect(2, write, {"p_text_document.bin exists", "give --overwrite"});
  expect(0, with(write, {"--overwrite"}), {});
  EXPECT_EQ(place_.listing(),
            (std::set<std::string>{"p_text_document.bin", "p_text_document.idx"}));
  for (const std::string& name : place_.listing()) fs::remove(place_ / name);
  expect(2, with(write, {"--json-keys", "text", "text"}), {"--json-keys", "'text' twice"});
  expect(2, with(write, {"--json-keys", "text", "--json-keys", "text"}), {"--json-keys", "twice"});
  EXPECT_TRUE(place_.listing().empty());
}

TEST_F(Commands, InputsAreNoOutputs) {
  for (const char* suffix : {".bin", ".idx"})
    fs::copy_file(vectors("indexed/u16_docs") + suffix, place_ / ("a" + std::string(suffix)));
  const std::string idx = read_file(place_ / "a.idx"), bin = read_file(place_ / "a.bin");
  fs::create_symlink("a.bin", place_ / "link.bin");
  fs::create_hard_link(place_ / "a.idx", place_ / "link.idx");
  for (const char* output : {"a", "./a", "link"}) {
    expect(2, {"merge", "--input", "a", "--output-prefix", output, "--overwrite"},
           {"this command reads"});
  }
  EXPECT_EQ(read_file(place_ / "a.idx"), idx);
  EXPECT_EQ(read_file(place_ / "a.bin"), bin);
  // A .bin without an .idx is not a pair of token files, whatever its name.
  write_file(place_ / "pytorch_model.bin", "weights");
  expect(2, {"merge", "--input", "a", "--output-prefix", "pytorch_model", "--overwrite"},
         {"pytorch_model.bin", "not a token file"});
  EXPECT_EQ(read_file(place_ / "pytorch_model.bin"), "weights");
  expect(0, {"merge", "--input", "a", "--output-prefix", "b"}, {});
  expect(2, {"merge", "--input", "a", "--output-prefix", "b"}, {"b.idx exists", "--overwrite"});
  expect(0, {"merge", "--input", "a", "--output-prefix", "b", "--overwrite"}, {});

  fs::create_directory(place_ / "order");
  write_file(place_ / "order/train-sample_index.npy", "notes");
  expect(
      2,
      {"index", "--data-path", "a", "--split", "1,0,0", "--seq-length", "1", "--output", "order"},
      {"train-sample_index.npy", "not a NumPy array"});
  EXPECT_EQ(read_file(place_ / "order/train-sample_index.npy"), "notes");
}

TEST_F(Commands, ModelsAndTextsAreNoOutputs) {
  fs::copy(vectors("hf/llama"), place_ / "model", fs::copy_options::recursive);
  const std::string config = read_file(place_ / "model/config.json");
  const Words generate = {"generate",      "--load",       "model", "--tokenizer-model",
                          kTokenizer,      "--max-tokens", "1",     "--prompt-file",
                          "prompts.jsonl", "--output"};
  write_file(place_ / "prompts.jsonl", "{\"request\": 0, \"prompt\": \"a\"}\n");
  expect(2, with(generate, {"model/config.json"}), {"--output model/config.json exists"});
  expect(2, with(generate, {"prompts.jsonl"}), {"this command reads"});
  EXPECT_EQ(read_file(place_ / "model/config.json"), config);
  const Words eval = {"eval", "--load", "model", "--input", "text.jsonl", "--per-document"};
  const std::string text = "{\"document\": 0, \"place\": \"a\", \"text\": \"one two three\"}\n";
  write_file(place_ / "text.jsonl", text);
  expect(2, with(eval, {"text.jsonl"}), {"--per-document text.jsonl", "this command reads"});
  expect(2, with(eval, {"model/config.json"}), {"not a list of document losses"});
  EXPECT_EQ(read_file(place_ / "text.jsonl"), text);
}

TEST_F(Commands, TokenizerOptionsAreCheckedBeforeTheText) {
  const Words train = {"tokenizer", "train", "--input", "bad.jsonl", "--output", "t"};
  write_file(place_ / "bad.jsonl", "not JSON");
  expect(2, train, {"bad.jsonl:1"});
  expect(2, with(train, {"--vocab-size", "10"}), {"--vocab-size", "10", "256", "257"});
  expect(2, with(train, {"--vocab-size", "257", "--special-tokens", "[a]", "[b]"}),
         {"--vocab-size", "257", "2 special tokens", "258"});
  expect(2, with(train, {"--vocab-size", "-5"}), {"--vocab-size", "-5"});
  expect(2, with(train, {"--min-frequency", "-5"}), {"--min-frequency", "-5"});
  expect(2, with(train, {"--special-tokens", "a", "a"}), {"--special-tokens", "'a'"});
  write_file(place_ / "empty.jsonl", "");
  expect(2, {"tokenizer", "train", "--input", "empty.jsonl", "--output", "t"},
         {"empty.jsonl", "no text"});
}

TEST_F(Commands, TokensWithTheirOffsets) {
  const Words encode = {"tokenizer", "encode", "--show-offsets", "--tokenizer-model"};
  const Outcome shown = expect(0, with(encode, {kTokenizer, "\xc3\xa9"}), {});
  EXPECT_NE(shown.out.find("       0-1       "), std::string::npos) << shown.out;
  expect(2, with(encode, {vectors("tokenizers/sentencepiece/bpe_llama"), "a"}),
         {"offsets", "SentencePiece", "tokenizer.json"});
}

TEST_F(Commands, AnOutputThatCannotBeWritten) {
  const std::string line = std::string(MEGATRON_BINARY) + " tokenizer decode --tokenizer-model " +
                           kTokenizer + " 50 > /dev/full 2> " + (place_ / "err");
  EXPECT_EQ(WEXITSTATUS(std::system(line.c_str())), 2);
  EXPECT_NE(read_file(place_ / "err").find("standard output cannot be written: No space left"),
            std::string::npos);
  for (const char* sink : {"> /dev/full", ">&-"}) {
    EXPECT_EQ(
        WEXITSTATUS(std::system(
            fmt::format("{} --version {} 2> {}", MEGATRON_BINARY, sink, place_ / "err").c_str())),
        2);
    EXPECT_NE(read_file(place_ / "err").find("standard output cannot be written: "),
              std::string::npos)
        << sink;
  }
  expect(2, {"tokenizer", "train", "--input", "none.txt", "--output", "err/t"},
         {"--output err/t cannot be created", "err is a file"});
}

TEST_F(Commands, AStackThatIsTooSmallIsRefused) {
  const std::string line = fmt::format("ulimit -s 64; {} plan --help > {} 2> {}", MEGATRON_BINARY,
                                       place_ / "out", place_ / "err");
  EXPECT_EQ(WEXITSTATUS(std::system(line.c_str())), 2);
  EXPECT_NE(read_file(place_ / "err").find("stacks are limited to 64 KiB (ulimit -s)"),
            std::string::npos);
}

TEST_F(Commands, AVocabularyThatWasNotReached) {
  write_file(place_ / "a.txt", "abab abab ab\n");
  const Words train = {"tokenizer",   "train",    "--input", "a.txt",
                       "--overwrite", "--output", "t",       "--vocab-size"};
  Outcome r = expect(0, with(train, {"1000"}), {"--vocab-size is 1000", "learned", "more text"});
  EXPECT_EQ(r.err.find("--min-frequency"), std::string::npos) << r.err;
  expect(0, with(train, {"1000", "--min-frequency", "3"}),
         {"--vocab-size is 1000", "3 times", "--min-frequency"});
  r = expect(0, with(train, {"258"}), {});
  EXPECT_EQ(r.err.find("--vocab-size"), std::string::npos) << r.err;
}

TEST_F(Commands, RecordsInAFileOfAnyNameForATokenizer) {
  write_file(place_ / "records", R"({"text": "ab ab ab", "note": "xy xy xy xy"})");
  const auto vocabulary = [&](const std::string& format) {
    expect(0,
           {"tokenizer", "train", "--input", "records", "--input-format", format, "--output",
            format, "--vocab-size", "258"},
           {});
    return Json::read(place_ / format + "/tokenizer.json")["model"]["vocab"];
  };
  const Json text = vocabulary("auto"), records = vocabulary("jsonl");
  EXPECT_NE(text.find("xy"), nullptr);
  EXPECT_EQ(text.find("ab"), nullptr);
  EXPECT_NE(records.find("ab"), nullptr);
  expect(2, {"tokenizer", "train", "--input", "records", "--input-format", "troff"},
         {"--input-format", "troff", "jsonl"});
}

TEST_F(Commands, EvaluationSaysWhatIsWrong) {
  const Words eval = {"eval", "--load", vectors("hf/llama"), "--seq-length", "16"};
  expect(2, with(eval, {"--mock-data", "--eval-samples", "0"}), {"--eval-samples is 0"});
  const Outcome r =
      expect(2,
             with(eval, {"--data-path", vectors("indexed/preprocess/bpe2k_eod_text_document"),
                         "--tokenizer-model", kTokenizer}),
             {kTokenizer, "2048 tokens", "use the tokenizer the model was trained with"});
  EXPECT_EQ(r.err.find("leave the flag out"), std::string::npos) << r.err;
}

// An untrained model with 400 tokens and a tokenizer with 257: every sampled token is one of the
// tokenizer's.
TEST_F(Commands, GenerationOfALongPrompt) {
  expect(0, {"tokenizer", "train", "--input", kText, "--output", "t", "--vocab-size", "257"}, {});
  expect(0,
         {"train",
          "--num-layers",
          "1",
          "--hidden-size",
          "16",
          "--num-attention-heads",
          "2",
          "--seq-length",
          "16",
          "--micro-batch-size",
          "1",
          "--train-iters",
          "1",
          "--lr",
          "1e-5",
          "--mock-data",
          "--tokenizer-model",
          "t",
          "--vocab-size",
          "400",
          "--save",
          "run"},
         {});
  const Words generate = {"generate",     "--load", "run",          "--temperature", "100",
                          "--max-tokens", "40",     "--ignore-eos", "--prompt"};
  expect(0, with(generate, {"it is a prompt of 29 letters."}), {"29 tokens", "16 positions"});
  const std::string whole = expect(0, with(generate, {"qq"}), {"2 prompt tokens"}).err;
  EXPECT_EQ(whole.find("positions"), whole.npos) << whole;
}

}  // namespace
}  // namespace megatron::testing
