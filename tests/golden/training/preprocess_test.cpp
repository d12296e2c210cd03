// Token files that equal Megatron-LM's byte for byte, and outputs that are complete or absent.
#include "corpus/preprocess.h"

#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "data/indexed_dataset.h"
#include "golden/training/support.h"

namespace megatron::training {
namespace {

std::string fixture(const std::string& name) { return vectors("indexed/preprocess/" + name); }

corpus::PreprocessSettings settings(const std::string& corpus, const std::string& tokenizer,
                                    const std::string& prefix) {
  corpus::PreprocessSettings s;
  s.input = {fixture(corpus)};
  s.tokenizer_model = fixture(tokenizer);
  s.output_prefix = prefix;
  s.append_eod = true;
  s.workers = 2;
  return s;
}

void expect_equal_files(const corpus::PreprocessSettings& s, const std::string& expected) {
  const auto results = preprocess(s);
  ASSERT_EQ(results.size(), s.json_keys.size());
  for (size_t i = 0; i < results.size(); ++i) {
    const std::string name = expected + "_" + s.json_keys[i] + "_document";
    EXPECT_TRUE(read_file(results[i].prefix + ".bin") == read_file(fixture(name + ".bin"))) << name;
    EXPECT_TRUE(read_file(results[i].prefix + ".idx") == read_file(fixture(name + ".idx"))) << name;
  }
}

// The flags of a case of meta.json, except --json-keys.
corpus::PreprocessSettings settings_of(const std::string& name, const Json& description) {
  corpus::PreprocessSettings s;
  s.input = {fixture(description["corpus"].as_string())};
  const std::string& tokenizer = description["tokenizer"].as_string();
  if (tokenizer.starts_with("tokenizer_")) {
    s.tokenizer_model = fixture(tokenizer);
  } else if (tokenizer.starts_with("null")) {
    s.tokenizer_type = "NullTokenizer";
    s.vocab_size = name.starts_with("null70000") ? 70000 : 1000;
    if (name.find("eodid7") != name.npos) s.null_tokenizer_eod_id = 7;
  } else {
    s.tokenizer_type = "ByteTokenizer";
    s.vocab_size = 512;
  }
  for (const Json& item : description["flags"].as_array()) {
    const std::string& flag = item.as_string();
    s.append_eod = s.append_eod || flag == "--append-eod";
    s.keep_sequential_samples = s.keep_sequential_samples || flag == "--keep-sequential-samples";
    if (flag == "--tokenizer-hf-no-include-special-tokens") s.hf_include_special_tokens = false;
  }
  s.partitions = std::stoll(description["partitions"].as_string());
  return s;
}

// The result does not depend on the number of workers or on how the input is cut into blocks.
TEST(Preprocess, EveryCaseEqualsMegatron) {
  const TemporaryDirectory folder;
  const Json cases = Json::read(fixture("meta.json"));
  EXPECT_EQ(cases.as_object().size(), 13u);
  for (const auto& [name, description] : cases.as_object()) {
    const std::string& key = description["json_key"].as_string();
    corpus::PreprocessSettings s = settings_of(name, description);
    s.json_keys = {key};
    s.overwrite = true;
    s.output_prefix = folder / "out";
    for (const int64_t workers : {1, 2, 5}) {
      for (const int64_t block_bytes : {100, 3000, 1 << 19}) {
        s.workers = workers;
        s.block_bytes = block_bytes;
        const corpus::PreprocessResult result = preprocess(s).at(0);
        EXPECT_EQ(result.tokens, description["tokens_total"].as_integer());
        for (const char* suffix : {".bin", ".idx"}) {
          EXPECT_TRUE(read_file(result.prefix + suffix) == read_file(fixture(name + suffix)))
              << name << suffix << " with " << workers << " workers, blocks of " << block_bytes;
        }
      }
    }
  }
}

TEST(Preprocess, SeveralKeysInOnePass) {
  const TemporaryDirectory folder;
  corpus::PreprocessSettings s = settings("corpus_two_keys.jsonl", "tokenizer_bpe2k", folder / "a");
  s.json_keys = {"title", "text"};
  expect_equal_files(s, "two_keys_eod");
}

TEST(Preprocess, PartitionsOfSeveralKeys) {
  const TemporaryDirectory folder;
  corpus::PreprocessSettings s = settings("corpus_two_keys.jsonl", "tokenizer_bpe2k", folder / "a");
  s.json_keys = {"title", "text"};
  s.partitions = 3;
  s.block_bytes = 500;
  const auto all = preprocess(s);
  s.json_keys = {"text"};
  s.output_prefix = folder / "b";
  const auto text = preprocess(s);
  EXPECT_TRUE(read_file(all[1].prefix + ".bin") == read_file(text[0].prefix + ".bin"));
  EXPECT_TRUE(read_file(all[1].prefix + ".idx") == read_file(text[0].prefix + ".idx"));
}

TEST(Preprocess, SplitsSentences) {
  const TemporaryDirectory folder;
  corpus::PreprocessSettings s = settings("", "tokenizer_bpe2k", folder / "a");
  s.input = {folder / "in.jsonl"};
  write_file(s.input[0],
             "{\"text\": \"One. Two.\\n\\nThree\"}\n{\"text\": [\"A b. C d.\", \"E\"]}\n"
             "{\"text\": \" \"}\n");
  s.split_sentences = true;
  const corpus::PreprocessResult result = preprocess(s).at(0);
  EXPECT_TRUE(result.prefix.ends_with("a_text_sentence"));
  const data::IndexedDataset set(result.prefix);
  ASSERT_EQ(set.document_count(), 3);
  EXPECT_EQ(set.document(0), (std::pair<int64_t, int64_t>{0, 3}));
  EXPECT_EQ(set.document(1), (std::pair<int64_t, int64_t>{3, 6}));
  EXPECT_EQ(set.document(2), (std::pair<int64_t, int64_t>{6, 6}));
  s.lang = "german";
  s.output_prefix = folder / "b";
  EXPECT_THROW(preprocess(s), Error);
}

std::string message_of(const corpus::PreprocessSettings& s) {
  try {
    preprocess(s);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// 2000 records, of which those in `bad` are malformed.
std::string many_lines(const std::map<int, std::string>& bad) {
  std::string text;
  for (int i = 1; i <= 2000; ++i) {
    const auto at = bad.find(i);
    text += at != bad.end() ? at->second : fmt::format("{{\"text\": \"record {}\"}}", i);
    text += '\n';
  }
  return text;
}

TEST(Preprocess, NamesTheFirstBadLineWhateverTheWorkers) {
  const TemporaryDirectory folder;
  corpus::PreprocessSettings s = settings("", "tokenizer_bpe2k", folder / "out/a");
  s.input = {folder / "in.jsonl"};
  s.block_bytes = 1000;
  write_file(s.input[0], many_lines({{1200, "{\"text\": 1}"}, {1500, "x"}, {1990, "{}"}}));
  for (const int64_t workers : {1, 2, 5}) {
    s.workers = workers;
    const std::string message = message_of(s);
    EXPECT_NE(message.find("in.jsonl:1200: the value of 'text'"), std::string::npos) << message;
    EXPECT_TRUE(std::filesystem::is_empty(folder / "out"));
  }
}

TEST(Preprocess, NamesAByteOrderMark) {
  const TemporaryDirectory folder;
  corpus::PreprocessSettings s = settings("", "tokenizer_bpe2k", folder / "a");
  s.input = {folder / "in.jsonl"};
  write_file(s.input[0], "\xef\xbb\xbf{\"text\": \"a\"}\n");
  EXPECT_NE(message_of(s).find("in.jsonl:1: the line begins with a byte-order mark"),
            std::string::npos)
      << message_of(s);
}

// Documents of sentences, given as lists of them or split here; a tokenizer for encoders has no
// end-of-document token, and sep takes its place, as in Megatron-LM.
TEST(Preprocess, DocumentsOfSentencesEqualMegatron) {
  const TemporaryDirectory folder;
  corpus::PreprocessSettings s;
  s.tokenizer_model = vectors("bert_dataset/data/wordpiece");
  s.hf_include_special_tokens = false;
  for (const std::string name : {"docs60", "tiny6", "short40"}) {
    for (const bool split : {false, true}) {
      s.split_sentences = split;
      s.input = {vectors("bert_dataset/data/" + name + ".jsonl")};
      s.output_prefix = folder / name;
      const std::string prefix = preprocess(s).at(0).prefix;
      EXPECT_TRUE(prefix.ends_with(split ? "_text_sentence" : "_text_document")) << prefix;
      for (const char* suffix : {".bin", ".idx"})
        EXPECT_TRUE(read_file(prefix + suffix) ==
                    read_file(vectors("bert_dataset/data/" + name) + suffix))
            << name << suffix;
    }
  }
  s.append_eod = true;
  s.output_prefix = folder / "ended";
  const data::IndexedDataset ended(preprocess(s).at(0).prefix);
  const data::IndexedDataset plain(vectors("bert_dataset/data/short40"));
  for (int64_t d = 0; d < ended.document_count(); ++d) {
    std::vector<int64_t> last = plain.get(plain.document(d).second - 1);
    last.push_back(7);
    EXPECT_EQ(ended.get(ended.document(d).second - 1), last);
    EXPECT_EQ(ended.document(d), plain.document(d));
  }
}

TEST(Preprocess, SkipsBadLinesWhenTold) {
  const TemporaryDirectory folder;
  corpus::PreprocessSettings s = settings("", "tokenizer_bpe2k", folder / "a");
  s.input = {folder / "in.jsonl"};
  s.block_bytes = 1000;
  s.on_bad_line = "skip";
  s.json_keys = {"text", "title"};
  s.log_interval = 100;
  std::string good;
  for (int i = 0; i < 50; ++i) good += "{\"text\": \"a b\", \"title\": \"c\"}\n";
  write_file(s.input[0], good + "{\"text\": \"only\"}\n" +
                             "{\"text\": \"\xff\", \"title\": \"\"}\n" + "\n" + good +
                             "{\"text\": \"cut");
  const auto results = preprocess(s);
  for (const corpus::PreprocessResult& result : results) {
    EXPECT_EQ(result.documents, 100);
    EXPECT_EQ(result.bad_lines, 3);
    EXPECT_EQ(data::IndexedDataset(result.prefix).document_count(), 100);
  }
}

TEST(Preprocess, ReadsOnlyWhatIsThere) {
  const TemporaryDirectory folder;
  corpus::PreprocessSettings s = settings("", "tokenizer_bpe2k", folder / "out/a");
  s.input = {folder / "missing*.jsonl"};
  EXPECT_NE(message_of(s).find("missing*"), std::string::npos);
  s.input = {fixture("corpus.jsonl")};
  s.output_prefix = "/proc/no/such/place";
  EXPECT_NE(message_of(s).find("/proc/no"), std::string::npos);
  s.output_prefix = folder / "a";
  for (const auto spoil : std::initializer_list<void (*)(corpus::PreprocessSettings&)>{
           [](corpus::PreprocessSettings& p) { p.workers = 0; },
           [](corpus::PreprocessSettings& p) { p.partitions = 0; },
           [](corpus::PreprocessSettings& p) { p.log_interval = 0; },
           [](corpus::PreprocessSettings& p) { p.keep_newlines = true; },
           [](corpus::PreprocessSettings& p) { p.json_keys = {"a", "a"}; }}) {
    corpus::PreprocessSettings bad = s;
    spoil(bad);
    EXPECT_NE(message_of(bad).find("--"), std::string::npos);
  }
}

TEST(Preprocess, FinishedFilesStayWithoutOverwrite) {
  const TemporaryDirectory folder;
  corpus::PreprocessSettings s = settings("corpus.jsonl", "tokenizer_bpe2k", folder / "a");
  preprocess(s);
  EXPECT_THROW(preprocess(s), Error);
  s.overwrite = true;
  expect_equal_files(s, "bpe2k_eod");
}

TEST(Preprocess, CutsPlainTextUnlessToldOtherwise) {
  const TemporaryDirectory folder;
  corpus::PreprocessSettings s = settings("", "tokenizer_bpe2k", folder / "a");
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

// A record in the middle lacks the second key: the files of neither key appear.
TEST(Preprocess, AnErrorLeavesNothingBehind) {
  const TemporaryDirectory folder;
  const std::string input = folder / "in.jsonl";
  write_file(input, "{\"text\": \"a\", \"title\": \"b\"}\n{\"text\": \"c\"}\n");
  corpus::PreprocessSettings s = settings("", "tokenizer_bpe2k", folder / "out/a");
  s.input = {input};
  s.json_keys = {"text", "title"};
  EXPECT_THROW(preprocess(s), Error);
  const std::string out = folder / "out";
  EXPECT_TRUE(!std::filesystem::exists(out) || std::filesystem::is_empty(out));
}

}  // namespace
}  // namespace megatron::training
