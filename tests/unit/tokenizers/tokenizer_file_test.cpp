// Which file of a directory is the tokenizer, and its format. A damaged file only ever causes an
// Error.
#include "tokenizers/tokenizer_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "base/error.h"
#include "base/files.h"
#include "tokenizers/base64.h"
#include "tokenizers/chat/chat_template.h"
#include "tokenizers/definition.h"
#include "tokenizers/tik_token/tik_token_file.h"
#include "tokenizers/tokenizer.h"

namespace megatron::tokenizers {
namespace {

namespace fs = std::filesystem;
using Kind = TokenizerFile::Kind;
using Ids = std::vector<int32_t>;

const std::string kTokenizers = std::string(MEGATRON_GOLDEN) + "/tokenizers/";

std::string byte_lines() {
  std::string lines;
  for (int byte = 0; byte < 256; ++byte)
    lines += to_base64(std::string(1, static_cast<char>(byte))) + " " + std::to_string(byte) + "\n";
  return lines;
}
std::string byte_list() {
  std::string list = "[";
  for (int byte = 0; byte < 256; ++byte) {
    list += (byte == 0 ? "" : ",\n") + std::string("{\"rank\": ") + std::to_string(byte) +
            ", \"token_bytes\": \"" + to_base64(std::string(1, static_cast<char>(byte))) +
            "\", \"token_str\": \"\"}";
  }
  return list + "]";
}
const std::string kBert = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\ncafe\n##s\nThe\n";
const std::string kPattern = R"({"pat_str": "\\s+|\\S+", "special_tokens": {"<end>": 256}})";

class TokenizerFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    place_ = fs::temp_directory_path() / ("megatron_tokenizer_file_" + std::string(test->name()));
    fs::remove_all(place_);
    fs::create_directories(place_);
  }
  void TearDown() override { fs::remove_all(place_); }

  void write(const std::string& name, const std::string& text) {
    std::ofstream(place_ / name, std::ios::binary) << text;
  }
  Kind kind(const std::string& name = "") {
    return read_tokenizer_file((place_ / name).string()).kind;
  }
  std::string refused(const std::string& name = "") {
    try {
      Tokenizer::load((place_ / name).string());
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
  fs::path place_;
};

TEST_F(TokenizerFileTest, TellsKindsByContent) {
  const std::string model = read_file(kTokenizers + "sentencepiece/bpe_unk/tokenizer.model");
  write("a", model);
  EXPECT_EQ(kind("a"), Kind::sentence_piece);
  write("tokenizer.model", byte_lines());  // as in Llama 3
  EXPECT_EQ(kind("tokenizer.model"), Kind::tik_token);
  write("b.json", byte_list());
  EXPECT_EQ(kind("b.json"), Kind::tik_token_list);
  write("c", kBert);
  EXPECT_EQ(kind("c"), Kind::bert);
  write("d.json", R"({"version": "1.0", "model": {"type": "BPE"}})");
  EXPECT_EQ(kind("d.json"), Kind::hugging_face);
  write("encoder.json", R"({"a": 0, "model": 1})");
  EXPECT_EQ(kind("encoder.json"), Kind::hugging_face);
  write("merges.txt", "#version: 0.2\n");
  EXPECT_EQ(kind("encoder.json"), Kind::gpt2);
}

TEST_F(TokenizerFileTest, PrefersOneOfSeveral) {
  write("x.vocab.json", byte_list());
  write("config.json", "{}");
  EXPECT_EQ(kind(), Kind::tik_token_list);
  write("vocab.txt", kBert);
  EXPECT_EQ(kind(), Kind::bert);
  write("x.tiktoken", byte_lines());
  EXPECT_EQ(kind(), Kind::tik_token);
  write("any.model", read_file(kTokenizers + "sentencepiece/bpe_unk/tokenizer.model"));
  EXPECT_EQ(kind(), Kind::sentence_piece);
  write("vocab.json", "{}");
  EXPECT_EQ(kind(), Kind::sentence_piece);
  write("merges.txt", "");
  EXPECT_EQ(kind(), Kind::gpt2);
  write("tokenizer.json", "{}");
  EXPECT_EQ(kind(), Kind::hugging_face);
}

TEST_F(TokenizerFileTest, SaysWhatItFound) {
  EXPECT_NE(refused().find("contains no tokenizer"), std::string::npos);
  EXPECT_NE(refused().find("it contains nothing"), std::string::npos);
  write("config.json", "{}");
  EXPECT_NE(refused().find("it contains config.json"), std::string::npos);
  write("a.model", "x");
  write("b.model", "x");
  EXPECT_NE(refused().find("contains several tokenizers (a.model, b.model); give one"),
            std::string::npos);
  EXPECT_NE(refused("a.model").find("a.model: offset 1: "), std::string::npos);
  write("c.bin", "hello\nworld\n");
  EXPECT_NE(refused("c.bin").find("not a supported tokenizer file (it has 12 bytes and begins "
                                  "with 'hello world '"),
            std::string::npos);
  EXPECT_NE(refused("absent").find("absent"), std::string::npos);
}

TEST_F(TokenizerFileTest, TikTokenNeedsItsPattern) {
  write("x.tiktoken", byte_lines());
  EXPECT_NE(refused().find("put tiktoken_config.json next to it: {\"pat_str\""), std::string::npos);
  write("tiktoken_config.json", kPattern);
  const Tokenizer tokenizer = Tokenizer::load(place_.string());
  EXPECT_EQ(tokenizer.encode("ab<end>"), (Ids{'a', 'b', 256}));
  EXPECT_EQ(tokenizer.vocabulary_size(), 257);
  fs::rename(place_ / "tiktoken_config.json", place_ / "tokenizer_config.json");
  EXPECT_EQ(Tokenizer::load(place_.string()).encode("ab<end>"), (Ids{'a', 'b', 256}));
}

TEST_F(TokenizerFileTest, BertFollowsTheConfiguration) {
  write("vocab.txt", kBert);
  EXPECT_EQ(Tokenizer::load(place_.string()).encode("The CAFES", true), (Ids{2, 5, 6, 7, 3}));
  write("tokenizer_config.json", R"({"do_lower_case": false})");
  EXPECT_EQ(Tokenizer::load(place_.string()).encode("The cafes"), (Ids{8, 6, 7}));
}

TEST_F(TokenizerFileTest, SentencePieceFollowsTheConfiguration) {
  write("tokenizer.model", read_file(kTokenizers + "sentencepiece/bpe_unk/tokenizer.model"));
  const Ids plain = Tokenizer::load(place_.string()).encode("the");
  Ids wanted = plain;
  wanted.insert(wanted.begin(), 1);
  EXPECT_EQ(Tokenizer::load(place_.string()).encode("the", true), wanted);
  write("tokenizer_config.json", R"({"add_bos_token": false, "add_eos_token": true})");
  wanted = plain;
  wanted.push_back(2);
  EXPECT_EQ(Tokenizer::load(place_.string()).encode("the", true), wanted);
}

TEST_F(TokenizerFileTest, ConfigurationsSayWhatIsWrong) {
  write("tokenizer.model", read_file(kTokenizers + "sentencepiece/bpe_unk/tokenizer.model"));
  write("tokenizer_config.json", R"({"tokenizer_class": "T5Tokenizer"})");
  EXPECT_NE(refused().find("tokenizer.model: for T5Tokenizer, transformers adds tokens"),
            std::string::npos);
  write("tokenizer_config.json", R"({"eos_token": 5})");
  EXPECT_NE(refused().find("tokenizer_config.json: 'eos_token' is 5; a token is a string or "),
            std::string::npos);
  write("tokenizer_config.json", R"({"added_tokens_decoder": {"x": {"content": "<x>"}}})");
  EXPECT_NE(refused().find("'x' in added_tokens_decoder is not an id"), std::string::npos);
  std::string names;
  for (int i = 0; i < 9000; ++i)
    names += (i == 0 ? "" : ",") + std::string("\"t") + std::to_string(i) + "_token\": \"x\"";
  write("tokenizer_config.json", R"({"extra_special_tokens": {)" + names + "}}");
  EXPECT_NE(refused().find("there are 9000 names in one object; the limit is 8192"),
            std::string::npos);
}

// A saved tokenizer opens again and encodes identically.
TEST_F(TokenizerFileTest, SavesEveryKind) {
  const std::string text = "Hello  w\xc3\xb6rld, 123\n\nthe <|im_start|> \xe4\xb8\xad\xe6\x96\x87";
  for (const char* folder : {"sentencepiece/bpe_llama", "sentencepiece/unigram_nfkc_cf",
                             "real/qwen_tiktoken", "trained/bert_cased"}) {
    const Tokenizer tokenizer = Tokenizer::load(kTokenizers + folder);
    const std::string saved = (place_ / fs::path(folder).filename()).string();
    fs::create_directories(saved);
    tokenizer.save(saved);
    const Tokenizer again = Tokenizer::load(saved);
    EXPECT_EQ(again.encode(text, true), tokenizer.encode(text, true)) << folder;
    EXPECT_EQ(again.eos(), tokenizer.eos()) << folder;
    EXPECT_EQ(again.vocabulary_size(), tokenizer.vocabulary_size()) << folder;
  }
}

// Bytes are changed, removed, inserted or truncated; files that still open encode and decode.
void damage(const std::string& path, int rounds, size_t begin = 0) {
  const TokenizerFile whole = read_tokenizer_file(path);
  std::mt19937_64 random(20);
  int opened = 0, refused = 0;
  for (int round = 0; round < rounds; ++round) {
    TokenizerFile file = whole;
    std::string& bytes = file.content;
    for (uint64_t changes = 1 + random() % 4; changes > 0; --changes) {
      const size_t at = begin + random() % (bytes.size() - begin);
      switch (random() % 8) {
        case 0: bytes[at] = static_cast<char>(random()); break;
        case 1: bytes[at] = '\xff'; break;
        case 2: bytes.erase(at, 1 + random() % 8); break;
        case 3: bytes.insert(at, bytes.substr(at, 1 + random() % 8)); break;
        case 4:
          if (round % 8 == 0) bytes.resize(at + 1);
          break;
        default: bytes[at] = static_cast<char>(bytes[at] ^ 1 << random() % 8);
      }
      if (bytes.size() <= begin) break;
    }
    try {
      const auto codec = make_codec(file);
      Ids ids;
      codec->encode("Hello  w\xc3\xb6rld \xef\xbc\xa1\xef\xb7\xba <s>", {}, ids, nullptr);
      for (int i = 0; i < 20; ++i) ids.push_back(static_cast<int32_t>(random() % 3000));
      codec->decode(ids, false);
      ++opened;
    } catch (const Error& error) {
      EXPECT_STRNE(error.what(), "");
      ++refused;
    }
  }
  EXPECT_GT(refused, 0) << path;
  EXPECT_EQ(opened + refused, rounds);
}

TEST_F(TokenizerFileTest, DamagedSentencePiece) {
  damage(kTokenizers + "sentencepiece/bpe_unk/tokenizer.model", 300);
  damage(kTokenizers + "sentencepiece/unigram_suffix/tokenizer.model", 200);
  damage(kTokenizers + "sentencepiece/unigram_nfkc_cf/tokenizer.model", 60, 30000);  // its map
}

TEST_F(TokenizerFileTest, DamagedTikToken) {
  write("x.tiktoken", byte_lines() + "YWI= 257\nYWJj 258\n");
  write("tiktoken_config.json", kPattern);
  damage((place_ / "x.tiktoken").string(), 400);
  write("list.json", byte_list());
  damage((place_ / "list.json").string(), 200);
}

TEST_F(TokenizerFileTest, DamagedVocabularies) {
  write("vocab.txt", kBert);
  damage((place_ / "vocab.txt").string(), 400);
  write("vocab.json", R"({"a": 0, "b": 1, "ab": 2, "c": 3, "abc": 4, "<|endoftext|>": 5})");
  write("merges.txt", "#version: 0.2\na b\nab c\n");
  damage((place_ / "vocab.json").string(), 400);
  const std::string vocabulary = read_file((place_ / "vocab.json").string());
  const std::string merges = read_file((place_ / "merges.txt").string());
  std::mt19937_64 random(21);
  for (int round = 0; round < 200; ++round) {
    std::string bytes = merges;
    bytes[random() % bytes.size()] = static_cast<char>(random());
    std::ofstream(place_ / "merges.txt", std::ios::binary) << bytes;
    try {
      Tokenizer::load(place_.string()).encode("abc");
    } catch (const Error&) {
    }
  }
}

TEST_F(TokenizerFileTest, DamagedTokenizerJson) {
  write("tokenizer.json", R"({"version": "1.0", "truncation": null, "padding": null,
 "added_tokens": [{"id": 7, "content": "<s>", "single_word": true, "lstrip": true, "rstrip": false,
  "normalized": false, "special": true}],
 "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]},
 "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern":
  {"Regex": "[^\\s\\p{L}]+|\\p{L}{1,3}"}, "behavior": "Isolated", "invert": false},
  {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]},
 "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>",
  "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [], "special_tokens":
  {"<s>": {"id": "<s>", "ids": [7], "tokens": ["<s>"]}}},
 "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
 "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
  "vocab": {"h": 0, "e": 1, "l": 2, "o": 3, "he": 4, "ll": 5, "hell": 6},
  "merges": [["h", "e"], ["l", "l"], ["he", "ll"]]}})");
  damage((place_ / "tokenizer.json").string(), 600);
}

TEST(TokenizerFile, NamesMergesAndTemplatesThatArePointersOfGitLfs) {
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4\n";
  const fs::path folder = fs::path(::testing::TempDir()) / "pointers_of_git_lfs";
  fs::create_directories(folder);
  std::ofstream(folder / "chat_template.jinja") << pointer;
  const auto error_of = [](const auto& read) -> std::string {
    try {
      read();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(error_of([&] {
              parse_gpt2(R"({"a": 0})", pointer);
            }).find("'merges.txt' is a Git LFS pointer"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              ChatTemplate::load(folder.string());
            }).find("chat_template.jinja' is a Git LFS pointer"),
            std::string::npos);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace megatron::tokenizers
