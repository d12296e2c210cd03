// Token files equal to Megatron-LM's byte for byte, and outputs that appear whole or not at all.
#include "training/preprocess.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files.h"
#include "golden/training/support.h"

namespace megatron::training {
namespace {

std::string fixture(const std::string& name) { return vectors("indexed/preprocess/" + name); }

PreprocessSettings settings(const std::string& corpus, const std::string& tokenizer,
                            const std::string& prefix) {
  PreprocessSettings s;
  s.input = {fixture(corpus)};
  s.tokenizer_model = fixture(tokenizer);
  s.output_prefix = prefix;
  s.append_eod = true;
  s.workers = 2;
  return s;
}

void expect_equal_files(const PreprocessSettings& s, const std::string& expected) {
  const auto results = preprocess(s);
  ASSERT_EQ(results.size(), s.json_keys.size());
  for (size_t i = 0; i < results.size(); ++i) {
    const std::string name = expected + "_" + s.json_keys[i] + "_document";
    EXPECT_TRUE(read_file(results[i].prefix + ".bin") == read_file(fixture(name + ".bin"))) << name;
    EXPECT_TRUE(read_file(results[i].prefix + ".idx") == read_file(fixture(name + ".idx"))) << name;
  }
}

TEST(Preprocess, EqualsMegatron) {
  const TemporaryDirectory folder;
  expect_equal_files(settings("corpus.jsonl", "tokenizer_bpe2k", folder / "a"), "bpe2k_eod");
  expect_equal_files(settings("corpus.jsonl", "tokenizer_bpe2k_bos", folder / "b"),
                     "bpe2k_bos_eod");
  PreprocessSettings without = settings("corpus.jsonl", "tokenizer_bpe2k", folder / "c");
  without.append_eod = false;
  expect_equal_files(without, "bpe2k_no_eod");
}

TEST(Preprocess, TwoKeysEqualMegatron) {
  const TemporaryDirectory folder;
  PreprocessSettings s = settings("corpus_two_keys.jsonl", "tokenizer_bpe2k", folder / "a");
  s.json_keys = {"title", "text"};
  expect_equal_files(s, "two_keys_eod");
}

TEST(Preprocess, SentencesEqualMegatron) {
  const TemporaryDirectory folder;
  expect_equal_files(settings("corpus_sentence_lists.jsonl", "tokenizer_bpe2k", folder / "a"),
                     "sentence_lists_eod");
}

TEST(Preprocess, NumbersEqualMegatron) {
  const TemporaryDirectory folder;
  PreprocessSettings s = settings("corpus_ints.jsonl", "", folder / "a");
  s.tokenizer_model.reset();
  s.tokenizer_type = "NullTokenizer";
  s.vocab_size = 1000;
  expect_equal_files(s, "null1000_eod");
  s.input = {fixture("corpus_ints_big.jsonl")};
  s.output_prefix = folder / "b";
  s.vocab_size = 70000;
  expect_equal_files(s, "null70000_eod");
}

TEST(Preprocess, WorkersChangeNoByte) {
  const TemporaryDirectory folder;
  for (const int64_t workers : {1, 3}) {
    PreprocessSettings s =
        settings("corpus.jsonl", "tokenizer_bpe2k", folder / std::to_string(workers));
    s.workers = workers;
    expect_equal_files(s, "bpe2k_eod");
  }
}

TEST(Preprocess, FinishedFilesStayWithoutOverwrite) {
  const TemporaryDirectory folder;
  PreprocessSettings s = settings("corpus.jsonl", "tokenizer_bpe2k", folder / "a");
  preprocess(s);
  EXPECT_THROW(preprocess(s), Error);
  s.overwrite = true;
  expect_equal_files(s, "bpe2k_eod");
}

TEST(Preprocess, CutsPlainTextUnlessToldOtherwise) {
  const TemporaryDirectory folder;
  PreprocessSettings s = settings("", "tokenizer_bpe2k", folder / "a");
  std::string text;
  for (int line = 1; line <= 1000; ++line) text += line % 10 == 0 ? "\n" : "some words in a line\n";
  s.input = {folder / "book.txt"};
  write_file(s.input[0], text);
  const int64_t documents = preprocess(s)[0].documents;
  EXPECT_GT(documents, 5);
  EXPECT_LE(documents, 10);
  s.whole_files = true;
  s.output_prefix = folder / "b";
  EXPECT_EQ(preprocess(s)[0].documents, 1);
}

// The second key is missing from a record in the middle: neither key's files appear.
TEST(Preprocess, AnErrorLeavesNothingBehind) {
  const TemporaryDirectory folder;
  const std::string input = folder / "in.jsonl";
  write_file(input, "{\"text\": \"a\", \"title\": \"b\"}\n{\"text\": \"c\"}\n");
  PreprocessSettings s = settings("", "tokenizer_bpe2k", folder / "out/a");
  s.input = {input};
  s.json_keys = {"text", "title"};
  EXPECT_THROW(preprocess(s), Error);
  const std::string out = folder / "out";
  EXPECT_TRUE(!std::filesystem::exists(out) || std::filesystem::is_empty(out));
}

}  // namespace
}  // namespace megatron::training
